// The serving loop with a fake model.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/runtime/engine_loop.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/letter_tokenizer.h"

namespace folio::test {

inline constexpr int kVocab = 16;
inline AttentionModel Model() {
  AttentionModel model;
  model.limits = {256, 16, 0};
  model.rope.head_dim = model.rope.rotary_dim = 16;
  model.rope.trained_length = model.rope.original_length = 256;
  return model;
}

inline AttentionSpec Attention(const std::string& strategy) {
  return *ResolveAttention({{strategy, {}}, {}}, {}, Model(), {});
}
inline const KvGeometry kGeometry{.num_layers = 1,
                                  .num_heads = 1,
                                  .num_kv_heads = 1,
                                  .head_dim = 32,
                                  .padded_dim = 32,
                                  .page_tokens = 16,
                                  .dtype = DType::kF32};

// Always answers with token 5; records what ran.
class FakeRunner final : public EngineLoop::StepRunner {
 public:
  absl::Status Reserve(const ScheduledTokens& part, bool first) override {
    num_reserved = first ? 1 : num_reserved + 1;
    if (has_no_room(*part.sequence)) {
      return absl::ResourceExhaustedError("the device has no room for this one");
    }
    return absl::OkStatus();
  }
  void Start(const std::vector<ScheduledTokens>& step) override {
    EXPECT_GE(num_reserved, step.size());
    if (std::exchange(start_throws, false)) throw std::bad_alloc();
    ModelRunner::Results& results = started_.emplace_back();
    most_started = std::max(most_started, started_.size());
    ++steps;
    const int64_t before = tokens;
    for (const ScheduledTokens& part : step) {
      tokens += part.num_tokens;
      const Sequence& sequence = *part.sequence;
      const int64_t first = sequence.num_in_kv + 1;
      const int64_t end = std::min(first + part.num_tokens, sequence.num_prompt);
      if (sequence.scores && first < end) {
        results.scores.push_back({sequence.id, first, {}});
        results.scores.back().logprobs.assign(end - first, -1.0f);
        if (not_finite.contains(sequence.id) && not_finite.at(sequence.id) < end) {
          results.scores.back().not_finite = not_finite.at(sequence.id);
        }
      }
      if (sequence.generates && sequence.num_pending() == part.num_tokens) {
        const bool bad =
            not_finite.contains(sequence.id) && not_finite.at(sequence.id) == sequence.num_known;
        results.outputs.push_back({sequence.id, {answer, 0.0f, {}, !bad}});
      }
    }
    last_tokens_ = tokens - before;
  }
  ModelRunner::Results Finish() override {
    std::this_thread::sleep_for(std::chrono::duration<double>(
        seconds_per_token * static_cast<double>(std::exchange(last_tokens_, 0))));
    ModelRunner::Results results = std::move(started_.front());
    started_.pop_front();
    if (std::exchange(finish_throws, false)) throw std::bad_alloc();
    return results;
  }
  bool runs_ahead() const override { return ahead; }
  absl::Status status() const override { return device; }
  int steps = 0;
  int64_t tokens = 0;
  int32_t answer = 5;
  absl::Status device;
  bool ahead = false;
  size_t most_started = 0;
  std::function<bool(const Sequence&)> has_no_room = [](const Sequence&) { return false; };
  size_t num_reserved = 0;
  // How slow the model is.
  double seconds_per_token = 0;
  // Once.
  bool start_throws = false;
  bool finish_throws = false;
  // Positions of tokens whose logits are not finite, by request.
  std::map<RequestId, int64_t> not_finite;

 private:
  int64_t last_tokens_ = 0;
  std::deque<ModelRunner::Results> started_;
};

inline const std::vector<int32_t> kEos = {2};

inline TenantPtr NamedTenant(const std::string& name, double weight = 1) {
  return std::make_shared<Tenant>(Tenant{.name = name, .weight = weight});
}

class EngineLoopTest : public testing::Test {
 protected:
  explicit EngineLoopTest(int64_t frames = 100)
      : store_(*KvStore::Create(kGeometry, frames * 4096, HostMemory())),
        loop_({.scheduler = {64, 32},
               .model = Model(),
               .max_running_requests = 4,
               .vocab_size = kVocab,
               .on_device_failure = [this](const absl::Status&) { ++num_device_failures_; },
               .clock = [this] { return now_.value_or(std::chrono::steady_clock::now()); }},
              store_.get(), &runner_, &directory_) {}

  GenerateSpec Spec(int prompt, int max_new, std::optional<DocumentHandle> document = {}) {
    GenerateSpec spec;
    spec.document = std::move(document);
    spec.tokens.assign(prompt, 3);
    spec.attention = Attention("full");
    spec.stop.max_new_tokens = max_new;
    return spec;
  }
  std::shared_ptr<Recorder> Submit(RequestId id, GenerateSpec spec) {
    auto recorder = std::make_shared<Recorder>();
    TenantAccounts::Ticket ticket;
    LimitOf of;
    EXPECT_EQ(loop_.accounts().Join(loop_.accounts().Open(spec.tenant), {.requests = 1}, {},
                                    &ticket, &of),
              nullptr);
    loop_.Submit(id, std::make_unique<Generation>(std::move(spec), recorder, tokenizer_, kEos,
                                                  std::move(ticket)));
    return recorder;
  }
  void RunUntilIdle() {
    while (loop_.RunStep()) {
    }
  }
  // The front door's part of a document's life.
  DocumentHandle Open(const std::string& id, std::shared_ptr<EventSink> sink = nullptr,
                      const Payer& payer = {}) {
    DocumentHandle handle = directory_.Create(id, Attention("full"), nullptr, payer)->handle;
    loop_.documents().Create(handle, Attention("full"));
    loop_.documents().Follow(handle, std::move(sink));
    return handle;
  }
  void Append(const DocumentHandle& handle, int num_tokens) {
    EXPECT_TRUE(directory_.AddTokens(handle, num_tokens).ok());
    loop_.documents().Append(handle, std::vector<int32_t>(num_tokens, 4), 0);
  }
  void Finish(const DocumentHandle& handle) {
    EXPECT_TRUE(directory_.FinishUpload(handle).ok());
    loop_.documents().Finish(handle);
  }
  void Delete(const DocumentHandle& handle) {
    EXPECT_TRUE(directory_.Remove(handle).ok());
    loop_.documents().Drop(handle, absl::NotFoundError("deleted"));
  }
  DocumentHandle Upload(const std::string& id, int num_tokens) {
    DocumentHandle handle = Open(id);
    Append(handle, num_tokens);
    Finish(handle);
    RunUntilIdle();
    return handle;
  }

  const LetterTokenizer tokenizer_{kVocab};
  std::optional<SteadyTime> now_;  // nullopt: the real time
  FakeRunner runner_;
  int num_device_failures_ = 0;
  std::unique_ptr<KvStore> store_;
  DocumentDirectory directory_{{.max_documents = 2000}};
  EngineLoop loop_;
};

}  // namespace folio::test
