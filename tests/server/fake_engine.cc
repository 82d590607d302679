#include "tests/server/fake_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace folio::testing {

FakeEngine::FakeEngine() {
  info_.model_name = "fake";
  info_.architecture = "LlamaForCausalLM";
  info_.weight_dtype = "fp32";
  info_.backend = "cpu";
  info_.num_threads = 2;
  info_.page_tokens = 16;
  info_.kv_dtype = "fp32";
  info_.weight_bytes = 1000;
  info_.shape.vocab_size = tokenizer_.vocab_size();
  info_.shape.trained_length = 512;
  info_.default_attention = {{"full", {}}, {"plain", {}}};
  info_.catalogue.strategies.resize(2);
  info_.catalogue.strategies[0].name = "full";
  info_.catalogue.strategies[1].name = "lm_infinite";
}

FakeEngine::~FakeEngine() {
  std::lock_guard<std::mutex> lock(mu_);
  for (auto& [id, request] : requests_) {
    EmitLocked(&request, FailedEvent{absl::UnavailableError("the engine stops"), request.phase});
  }
}

absl::StatusOr<AttentionSpec> FakeEngine::ResolveAttention(const AttentionSpec& attention,
                                                           const PositionRequest&) const {
  const PositionSpec plain = {"plain", {}};
  if (!attention.position.name.empty() && attention.position.name != "plain") {
    absl::Status refused = absl::InvalidArgumentError("no such positions");
    refused.SetPayload(kFieldPayload, absl::Cord("position"));
    return refused;
  }
  const StrategySpec& spec = attention.strategy;
  if (spec.name.empty() || spec.name == "full") return AttentionSpec{{"full", {}}, plain};
  if (spec.name != "lm_infinite") return absl::InvalidArgumentError("no such strategy");
  const int64_t window = spec.IntOr("window", 512);
  if (window < 1 || window > 512) {
    return absl::InvalidArgumentError(absl::StrCat("window is ", window, ", must be in [1, 512]"));
  }
  return AttentionSpec{{"lm_infinite",
                        {{"num_sinks", spec.IntOr("num_sinks", 10)},
                         {"window", window},
                         {"distance_limit", spec.IntOr("distance_limit", window)}}},
                       plain};
}

absl::StatusOr<RequestId> FakeEngine::Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  std::lock_guard<std::mutex> lock(mu_);
  if (draining_) return absl::UnavailableError("the server is draining");
  if (!submit_status_.ok()) return submit_status_;
  if (!spec.document_id.empty()) {
    const auto document = documents_.find(spec.document_id);
    if (document == documents_.end()) return absl::NotFoundError("no document");
    if (!document->second.info.finished) return absl::FailedPreconditionError("not finished");
  }
  const RequestId id = requests_.size() + 1;
  requests_[id] = {std::move(spec), std::move(sink), Phase::kQueued, std::nullopt};
  changed_.notify_all();
  return id;
}

void FakeEngine::EmitLocked(Request* request, Event event) {
  if (request->sink == nullptr) return;
  if (std::holds_alternative<PrefillEvent>(event)) request->phase = Phase::kPrefill;
  if (std::holds_alternative<DeltaEvent>(event)) request->phase = Phase::kDecode;
  const bool last =
      std::holds_alternative<CompletedEvent>(event) || std::holds_alternative<FailedEvent>(event);
  request->sink->OnEvent(std::move(event));
  if (last) request->sink = nullptr;
}

void FakeEngine::Cancel(RequestId id, absl::Status reason) {
  std::lock_guard<std::mutex> lock(mu_);
  Request& request = requests_.at(id);
  if (!request.cancelled.has_value()) request.cancelled = reason;
  EmitLocked(&request, FailedEvent{std::move(reason), request.phase});
  changed_.notify_all();
}

absl::StatusOr<RequestId> FakeEngine::OpenScore(const AttentionSpec& attention,
                                                std::shared_ptr<EventSink> sink) {
  std::lock_guard<std::mutex> lock(mu_);
  if (draining_) return absl::UnavailableError("the server is draining");
  const RequestId id = requests_.size() + 1;
  GenerateSpec spec;
  spec.attention = attention;
  requests_[id] = {std::move(spec), std::move(sink), Phase::kPrefill, std::nullopt};
  return id;
}

absl::Status FakeEngine::AppendToScore(RequestId id, std::vector<int32_t> tokens) {
  std::lock_guard<std::mutex> lock(mu_);
  Request& request = requests_.at(id);
  std::vector<int32_t>& known = request.spec.tokens;
  ScoredEvent scored;
  scored.first_position = std::max<int64_t>(1, static_cast<int64_t>(known.size()));
  known.insert(known.end(), tokens.begin(), tokens.end());
  scored.logprobs.assign(known.size() - scored.first_position, -1.0f);
  EmitLocked(&request, std::move(scored));
  return absl::OkStatus();
}

void FakeEngine::FinishScore(RequestId id) {
  std::lock_guard<std::mutex> lock(mu_);
  Request& request = requests_.at(id);
  CompletedEvent completed;
  completed.usage.prompt_tokens = static_cast<int64_t>(request.spec.tokens.size());
  EmitLocked(&request, std::move(completed));
}

absl::Status FakeEngine::OpenDocument(const std::string& id, const AttentionSpec& attention,
                                      std::shared_ptr<EventSink> sink) {
  std::lock_guard<std::mutex> lock(mu_);
  if (draining_) return absl::UnavailableError("the server is draining");
  Document& document = documents_[id];
  if (document.info.finished) return absl::AlreadyExistsError("finished");
  document.info.id = id;
  document.info.attention = attention;
  document.sink = std::move(sink);
  document.paused = false;
  return absl::OkStatus();
}

absl::Status FakeEngine::AppendToDocument(const std::string& id, std::vector<int32_t> tokens) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return absl::NotFoundError("no document");
  Document& document = it->second;
  document.tokens.insert(document.tokens.end(), tokens.begin(), tokens.end());
  document.info.known_tokens = static_cast<int64_t>(document.tokens.size());
  return absl::OkStatus();
}

absl::Status FakeEngine::FinishDocument(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  Document& document = documents_.at(id);
  document.info.finished = true;
  changed_.notify_all();
  if (hold_prefill_) return absl::OkStatus();
  const int64_t tokens = document.info.known_tokens;
  document.info.prefilled_tokens = tokens;
  if (document.sink == nullptr) return absl::OkStatus();
  document.sink->OnEvent(PrefillEvent{tokens, 0, tokens});
  document.sink->OnEvent(CompletedEvent{});
  document.sink = nullptr;
  return absl::OkStatus();
}

void FakeEngine::PauseDocument(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  if (it != documents_.end()) it->second.paused = true;
  changed_.notify_all();
}

absl::Status FakeEngine::DeleteDocument(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return absl::NotFoundError("no document");
  if (it->second.sink != nullptr) {
    it->second.sink->OnEvent(FailedEvent{absl::NotFoundError("deleted"), Phase::kPrefill});
  }
  documents_.erase(it);
  changed_.notify_all();
  return absl::OkStatus();
}

std::optional<DocumentInfo> FakeEngine::GetDocument(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return std::nullopt;
  return it->second.info;
}

std::vector<DocumentInfo> FakeEngine::ListDocuments() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<DocumentInfo> list;
  for (const auto& [id, document] : documents_) list.push_back(document.info);
  return list;
}

EngineStats FakeEngine::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

void FakeEngine::StopAdmission() {
  std::lock_guard<std::mutex> lock(mu_);
  draining_ = true;
  changed_.notify_all();
}

void FakeEngine::set_stats(const EngineStats& stats) {
  std::lock_guard<std::mutex> lock(mu_);
  stats_ = stats;
}

void FakeEngine::RefuseSubmit(absl::Status status) {
  std::lock_guard<std::mutex> lock(mu_);
  submit_status_ = std::move(status);
}

void FakeEngine::HoldPrefill() {
  std::lock_guard<std::mutex> lock(mu_);
  hold_prefill_ = true;
}

GenerateSpec FakeEngine::WaitForRequest(RequestId count) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return requests_.size() >= count; });
  return requests_.at(count).spec;
}

void FakeEngine::Emit(Event event, RequestId id) {
  std::lock_guard<std::mutex> lock(mu_);
  EmitLocked(&requests_.at(id), std::move(event));
}

void FakeEngine::EmitToDocument(const std::string& id, Event event) {
  std::lock_guard<std::mutex> lock(mu_);
  if (documents_.at(id).sink != nullptr) documents_.at(id).sink->OnEvent(std::move(event));
}

absl::Status FakeEngine::WaitForCancel(RequestId id) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return requests_.contains(id) && requests_.at(id).cancelled; });
  return *requests_.at(id).cancelled;
}

void FakeEngine::WaitForPause(const std::string& id) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return documents_.at(id).paused; });
}

void FakeEngine::WaitForFinish(const std::string& id) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return documents_.at(id).info.finished; });
}

void FakeEngine::WaitForDeletion(const std::string& id) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return !documents_.contains(id); });
}

std::vector<int32_t> FakeEngine::DocumentTokens(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mu_);
  return documents_.at(id).tokens;
}

int FakeEngine::num_running() const {
  std::lock_guard<std::mutex> lock(mu_);
  int running = 0;
  for (const auto& [id, request] : requests_) running += request.sink != nullptr ? 1 : 0;
  return running;
}

void FakeEngine::WaitForDrain() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return draining_; });
}

}  // namespace folio::testing
