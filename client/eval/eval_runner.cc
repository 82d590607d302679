#include "client/eval/eval_runner.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/document_source.h"
#include "client/status.h"

namespace folio::eval {
namespace {

bool MayBeTriedAgain(const absl::Status& status) {
  const bool full_for_now =
      absl::IsResourceExhausted(status) && client::RetryDelay(status).has_value();
  return absl::IsUnavailable(status) || full_for_now;
}

// Deletes a document when the question over it is answered, also after a cancellation.
class DocumentDeleter {
 public:
  DocumentDeleter(client::Client& client, std::string document_id)
      : client_(client), document_id_(std::move(document_id)) {}
  // A document that cannot be deleted does not make the answer wrong.
  ~DocumentDeleter() { client_.DeleteDocument(document_id_).IgnoreError(); }
  DocumentDeleter(const DocumentDeleter&) = delete;
  DocumentDeleter& operator=(const DocumentDeleter&) = delete;

 private:
  client::Client& client_;
  const std::string document_id_;
};

class EvalRun {
 public:
  EvalRun(client::Client& client, const EvalTask& task, const EvalPlan& plan,
          const std::function<void(const TrialResult&)>& on_result)
      : client_(client), task_(task), plan_(plan), on_result_(on_result) {}

  absl::StatusOr<std::vector<TrialResult>> Run() {
    results_.resize(NumUnits() * plan_.methods.size());
    {
      std::vector<std::jthread> workers;
      workers.reserve(plan_.concurrency);
      for (int i = 0; i < plan_.concurrency; ++i) workers.emplace_back([this] { Work(); });
    }
    if (plan_.cancel.stop_requested()) return absl::CancelledError("cancelled");
    if (!fatal_.ok()) return fatal_;
    return std::move(results_);
  }

 private:
  // A unit is one trial of one length, under all strategies.
  size_t NumUnits() const { return plan_.lengths_tokens.size() * plan_.num_trials; }

  void Work() {
    while (!stop_.load() && !plan_.cancel.stop_requested()) {
      const size_t unit = next_unit_.fetch_add(1);
      if (unit >= NumUnits()) return;
      const absl::Status status = RunUnit(unit);
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (fatal_.ok()) fatal_ = status;
      stop_.store(true);
    }
  }

  absl::Status RunUnit(size_t unit) {
    const uint64_t target_tokens = plan_.lengths_tokens[unit / plan_.num_trials];
    const int trial_idx = static_cast<int>(unit % plan_.num_trials);
    const absl::StatusOr<Trial> trial = task_.MakeTrial(target_tokens, trial_idx, plan_.num_trials);
    if (!trial.ok()) return trial.status();
    for (size_t i = 0; i < plan_.methods.size(); ++i) {
      const TrialResult* known = Known(plan_.methods[i].name, target_tokens, trial_idx);
      TrialResult result = known != nullptr ? *known : Ask(*trial, plan_.methods[i]);
      result.known = known != nullptr;
      result.target_tokens = target_tokens;
      result.trial_idx = trial_idx;
      if (absl::IsUnavailable(result.status) || absl::IsCancelled(result.status)) {
        return result.status;
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      on_result_(result);
      results_[unit * plan_.methods.size() + i] = std::move(result);
    }
    return absl::OkStatus();
  }

  const TrialResult* Known(const std::string& method, uint64_t target_tokens, int trial_idx) const {
    for (const TrialResult& result : plan_.known) {
      if (result.strategy == method && result.target_tokens == target_tokens &&
          result.trial_idx == trial_idx) {
        return &result;
      }
    }
    return nullptr;
  }

  TrialResult Ask(const Trial& trial, const Method& method) {
    for (int num_failures = 1;; ++num_failures) {
      TrialResult result;
      result.strategy = method.name;
      result.depth = trial.depth;
      result.expected = trial.expected;
      result.needle_distance_tokens = trial.needle_distance_tokens;
      result.needle_tokens = trial.needle_tokens;
      result.prompt_tokens = trial.prompt_tokens;
      result.status = AskOnce(trial, method, &result);
      result.correct = result.status.ok() && task_.IsCorrect(trial, result.answer);
      if (!MayBeTriedAgain(result.status) || num_failures >= plan_.retry.max_failures) {
        return result;
      }
      const absl::Duration delay = client::RetryDelayFor(plan_.retry, num_failures, result.status);
      if (!client::WaitFor(delay, plan_.cancel)) {
        result.status = absl::CancelledError("cancelled");
        return result;
      }
    }
  }

  absl::Status AskOnce(const Trial& trial, const Method& method, TrialResult* result) {
    v1::GenerateRequest request;
    *request.mutable_strategy() = method.strategy;
    *request.mutable_position() = method.position;
    request.mutable_sampling()->set_temperature(0);
    request.mutable_response()->set_layer_evidence(plan_.layer_evidence);
    request.mutable_stopping()->set_max_new_tokens(task_.max_new_tokens());
    std::string prompt = absl::StrCat(trial.context, " ", trial.question);
    if (prompt.size() <= plan_.max_inline_prompt_bytes) {
      request.set_prompt(std::move(prompt));
      request.set_format(v1::PROMPT_FORMAT_RAW);  // as the papers ask
      return Generate(request, result);
    }
    client::UploadOptions options;
    options.display_name = task_.name();
    options.strategy = method.strategy;
    options.position = method.position;
    options.cancel = plan_.cancel;
    const absl::StatusOr<v1::Document> document = client_.UploadDocument(
        client::TextSource(trial.context), options, [](const v1::UploadDocumentEvent&) {});
    if (!document.ok()) return document.status();
    const DocumentDeleter deleter(client_, document->document_id());
    request.mutable_document()->set_document_id(document->document_id());
    request.mutable_document()->set_text(trial.question);
    return Generate(request, result);
  }

  absl::Status Generate(const v1::GenerateRequest& request, TrialResult* result) {
    return client_.Generate(
        request, {.cancel = plan_.cancel}, [result](const v1::GenerateEvent& event) {
          if (event.has_accepted()) {
            const v1::Accepted& accepted = event.accepted();
            if (accepted.prompt_tokens() > 0) result->prompt_tokens = accepted.prompt_tokens();
            if (accepted.strategy().lm_infinite().has_window()) {
              result->needle_in_window =
                  result->needle_distance_tokens <= accepted.strategy().lm_infinite().window();
            }
          } else if (event.has_delta()) {
            result->answer += event.delta().text();
          } else if (event.has_layer_evidence()) {
            result->layers.push_back(event.layer_evidence());
          } else if (event.has_completed()) {
            result->ttft_seconds = event.completed().timings().time_to_first_token_seconds();
            result->device_kv_bytes_peak = event.completed().memory().device_kv_bytes_peak();
          }
        });
  }

  client::Client& client_;
  const EvalTask& task_;
  const EvalPlan& plan_;
  const std::function<void(const TrialResult&)>& on_result_;
  std::atomic<size_t> next_unit_{0};
  std::atomic<bool> stop_{false};

  // Guards everything below; the results are sized before the workers start.
  std::mutex mutex_;
  absl::Status fatal_;
  std::vector<TrialResult> results_;
};

}  // namespace

absl::StatusOr<std::vector<TrialResult>> RunEval(
    client::Client& client, const EvalTask& task, const EvalPlan& plan,
    const std::function<void(const TrialResult&)>& on_result) {
  return EvalRun(client, task, plan, on_result).Run();
}

}  // namespace folio::eval
