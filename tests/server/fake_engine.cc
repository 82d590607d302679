#include "tests/server/fake_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"

namespace folio::testing {

FakeEngine::FakeEngine(const EngineOptions& options)
    : max_context_tokens_(options.max_context_tokens),
      directory_({.max_documents = options.max_documents,
                  .max_tokens = options.max_context_tokens,
                  .now_us = [this] { return NowUs(); },
                  .on_change = options.on_document_change}) {
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
  info_.sliding_window = 300;
  if (const auto format = FindChatFormat(options.chat_format); format.ok()) {
    info_.chat = std::make_shared<const Chat>(*format, "<s>", "</s>", tokenizer_);
  }
  info_.checkpoint_sampling = {
      .temperature = 0.5f, .top_k = 20, .top_p = 0.75f, .repetition_penalty = 1.25f};
  info_.default_attention = {{"full", {}}, {"plain", {}}};
  info_.adapters = {{"poet", 8, {"q_proj", "v_proj"}, 4096}};
  info_.catalogue.strategies.resize(2);
  info_.catalogue.strategies[0].name = "full";
  info_.catalogue.strategies[1].name = "lm_infinite";
}

int64_t FakeEngine::NowUs() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count() + passed_us_.load();
}

FakeEngine::~FakeEngine() {
  const absl::Status stopped = absl::UnavailableError("the engine stops");
  MutexLock lock(&mu_);
  for (auto& [id, request] : requests_) EmitTo(&request, FailedEvent{stopped, request.phase});
  for (auto& [incarnation, document] : documents_) {
    if (document.sink != nullptr) document.sink->OnEvent(FailedEvent{stopped, Phase::kPrefill});
  }
}

absl::StatusOr<AttentionSpec> FakeEngine::ResolveAttention(const AttentionSpec& attention,
                                                           const PositionRequest&) const {
  const PositionSpec plain = {"plain", {}};
  if (!attention.adapter.name.empty() && attention.adapter.name != "poet") {
    return absl::NotFoundError(absl::StrCat("no adapter '", attention.adapter.name, "' is loaded"));
  }
  const AdapterSpec adapter =
      attention.adapter.name.empty() ? AdapterSpec{} : AdapterSpec{"poet", "00"};
  if (!attention.position.name.empty() && attention.position.name != "plain") {
    absl::Status refused = absl::InvalidArgumentError("no such positions");
    refused.SetPayload(kFieldPayload, absl::Cord("position"));
    return refused;
  }
  const StrategySpec& spec = attention.strategy;
  if (spec.name.empty() || spec.name == "full") return AttentionSpec{{"full", {}}, plain, adapter};
  if (spec.name != "lm_infinite") return absl::InvalidArgumentError("no such strategy");
  const int64_t window = spec.IntOr("window", 512);
  if (window < 1 || window > 512) {
    return absl::InvalidArgumentError(absl::StrCat("window is ", window, ", must be in [1, 512]"));
  }
  return AttentionSpec{{"lm_infinite",
                        {{"num_sinks", spec.IntOr("num_sinks", 10)},
                         {"window", window},
                         {"distance_limit", spec.IntOr("distance_limit", window)}}},
                       plain,
                       adapter};
}

absl::Status FakeEngine::CheckServing() const {
  return draining_ ? absl::UnavailableError("the server is draining") : absl::OkStatus();
}

RequestId FakeEngine::Add(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  const RequestId id = requests_.size() + 1;
  requests_[id] = {std::move(spec), std::move(sink), Phase::kQueued, std::nullopt};
  changed_.NotifyAll();
  return id;
}

absl::StatusOr<std::shared_ptr<const AnswerGrammar>> FakeEngine::CompileGrammar(
    const GrammarSource& source) const {
  if (source.text.find('(') != std::string::npos && source.text.find(')') == std::string::npos) {
    return absl::InvalidArgumentError("a parenthesis is not closed");
  }
  return std::make_shared<FakeGrammar>(source);
}

absl::Status FakeEngine::CheckQueue(const TenantPtr&) const {
  MutexLock lock(&mu_);
  return queue_status_;
}

absl::StatusOr<RequestId> FakeEngine::Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  if (!submit_status_.ok() && num_before_refusal_-- <= 0) return submit_status_;
  FOLIO_RETURN_IF_ERROR(CheckRequest(spec, info_.shape.vocab_size));
  if (spec.document.has_value()) {
    FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(*spec.document));
    FOLIO_RETURN_IF_ERROR(CheckFinished(document));
    directory_.Touch(document.handle);
  }
  FOLIO_ASSIGN_OR_RETURN(spec.attention, ResolveAttention(spec.attention, {}));
  const std::optional<DocumentHandle> document = spec.document;
  const RequestId id = Add(std::move(spec), std::move(sink));
  if (answers_at_once_) {
    std::string text = "answer";
    if (document.has_value()) {
      text = *tokenizer_.Decode(documents_.at(document->incarnation).tokens);
    }
    EmitTo(&requests_[id], DeltaEvent{std::move(text), {FakeTokenizer::kFirstByte}, {}, {}});
    EmitTo(&requests_[id], CompletedEvent{});
  }
  return id;
}

absl::StatusOr<Estimate> FakeEngine::EstimateRequest(GenerateSpec spec) const {
  {
    MutexLock lock(&mu_);
    FOLIO_RETURN_IF_ERROR(CheckServing());
  }
  FOLIO_RETURN_IF_ERROR(CheckRequest(spec, info_.shape.vocab_size));
  int64_t num_tokens = std::ssize(spec.tokens);
  if (spec.document.has_value()) {
    FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(*spec.document));
    num_tokens += document.known_tokens;
  }
  FOLIO_ASSIGN_OR_RETURN(Estimate estimate,
                         EstimateDocument(spec.attention, num_tokens, {spec.tenant}));
  estimate.total_tokens += spec.stop.max_new_tokens;
  return estimate;
}

absl::StatusOr<Estimate> FakeEngine::EstimateDocument(const AttentionSpec& attention,
                                                      int64_t num_tokens, const Payer&) const {
  Estimate estimate;
  FOLIO_ASSIGN_OR_RETURN(estimate.attention, ResolveAttention(attention, {}));
  estimate.prompt_tokens = estimate.total_tokens = num_tokens;
  estimate.memory.device_kv_bytes_peak = num_tokens;
  estimate.fit = num_tokens <= 1000 ? Estimate::Fit::kNow : Estimate::Fit::kWhenIdle;
  if (num_tokens > 1000) estimate.reason = "1000 bytes are free";
  estimate.queue_seconds = 0.5;
  estimate.first_token_seconds = 1 + static_cast<double>(num_tokens);
  return estimate;
}

FakeEngine::Request* FakeEngine::Running(RequestId id) {
  const auto it = requests_.find(id);
  return it == requests_.end() || it->second.sink == nullptr ? nullptr : &it->second;
}

void FakeEngine::EmitTo(Request* request, Event event) {
  if (request->sink == nullptr) return;
  if (std::holds_alternative<PrefillEvent>(event)) request->phase = Phase::kPrefill;
  if (std::holds_alternative<DeltaEvent>(event)) request->phase = Phase::kDecode;
  const bool last =
      std::holds_alternative<CompletedEvent>(event) || std::holds_alternative<FailedEvent>(event);
  request->sink->OnEvent(std::move(event));
  if (last) request->sink = nullptr;
}

void FakeEngine::Cancel(RequestId id, absl::Status reason) {
  MutexLock lock(&mu_);
  const auto it = requests_.find(id);
  if (it == requests_.end() || frozen_) return;
  Request& request = it->second;
  if (!request.cancelled.has_value()) request.cancelled = reason;
  EmitTo(&request, FailedEvent{std::move(reason), request.phase});
  changed_.NotifyAll();
}

void FakeEngine::Freeze() {
  MutexLock lock(&mu_);
  frozen_ = true;
}

void FakeEngine::HoldBack(RequestId id) {
  MutexLock lock(&mu_);
  if (requests_.contains(id)) requests_.at(id).held_back = true;
  changed_.NotifyAll();
}

void FakeEngine::LetGoOn(RequestId id) {
  MutexLock lock(&mu_);
  if (requests_.contains(id)) requests_.at(id).held_back = false;
  changed_.NotifyAll();
}

absl::StatusOr<RequestId> FakeEngine::OpenScore(const AttentionSpec& attention, const Payer& payer,
                                                std::shared_ptr<EventSink> sink) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  GenerateSpec spec;
  spec.tenant = payer.tenant;
  FOLIO_ASSIGN_OR_RETURN(spec.attention, ResolveAttention(attention, {}));
  return Add(std::move(spec), std::move(sink));
}

absl::Status FakeEngine::AppendToScore(RequestId id, std::vector<int32_t> tokens) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens, info_.shape.vocab_size));
  MutexLock lock(&mu_);
  Request* request = Running(id);
  if (request == nullptr) return absl::OkStatus();
  request->phase = Phase::kPrefill;
  std::vector<int32_t>& known = request->spec.tokens;
  ScoredEvent scored;
  scored.first_position = std::max<int64_t>(1, static_cast<int64_t>(known.size()));
  known.insert(known.end(), tokens.begin(), tokens.end());
  scored.logprobs.assign(known.size() - scored.first_position, -1.0f);
  EmitTo(request, std::move(scored));
  return absl::OkStatus();
}

void FakeEngine::FinishScore(RequestId id) {
  MutexLock lock(&mu_);
  Request* request = Running(id);
  if (request == nullptr) return;
  CompletedEvent completed;
  completed.usage.prompt_tokens = static_cast<int64_t>(request->spec.tokens.size());
  EmitTo(request, std::move(completed));
}

absl::Status FakeEngine::CheckDocumentSize(const AttentionSpec&, int64_t num_bytes) const {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(size_status_);
  return CheckLength("the document", num_bytes, max_context_tokens_);
}

absl::StatusOr<DocumentInfo> FakeEngine::OpenDocument(
    const std::string& id, const AttentionSpec& attention,
    std::shared_ptr<DocumentAttachment> attachment, const Payer& payer) {
  MutexLock lock(&mu_);
  if (std::optional<DocumentInfo> document = directory_.Find(id)) return *std::move(document);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec resolved, ResolveAttention(attention, {}));
  FOLIO_ASSIGN_OR_RETURN(DocumentInfo document,
                         directory_.Create(id, resolved, std::move(attachment), payer));
  documents_[document.handle.incarnation] = {};
  return document;
}

absl::Status FakeEngine::FollowDocument(const DocumentHandle& handle,
                                        std::shared_ptr<EventSink> sink) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo info, directory_.Get(handle));
  FOLIO_RETURN_IF_ERROR(CheckUploading(info));
  Document& document = documents_.at(handle.incarnation);
  document.sink = std::move(sink);
  document.paused = false;
  return absl::OkStatus();
}

absl::Status FakeEngine::AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens,
                                          int64_t /*text_bytes*/) {
  MutexLock lock(&mu_);
  ++num_appends_;
  changed_.NotifyAll();
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens, info_.shape.vocab_size));
  FOLIO_RETURN_IF_ERROR(directory_.AddTokens(handle, static_cast<int64_t>(tokens.size())));
  if (!room_) directory_.SetShortOfRoom(handle, true);
  std::vector<int32_t>& known = documents_.at(handle.incarnation).tokens;
  known.insert(known.end(), tokens.begin(), tokens.end());
  return absl::OkStatus();
}

absl::Status FakeEngine::FinishDocument(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(directory_.FinishUpload(handle));
  changed_.NotifyAll();
  if (hold_prefill_) return absl::OkStatus();
  Document& document = documents_.at(handle.incarnation);
  const auto tokens = static_cast<int64_t>(document.tokens.size());
  directory_.SetProgress(handle, {.prefilled_tokens = tokens});
  if (document.sink == nullptr) return absl::OkStatus();
  document.sink->OnEvent(PrefillEvent{tokens, 0, tokens});
  document.sink->OnEvent(CompletedEvent{});
  document.sink = nullptr;
  return absl::OkStatus();
}

void FakeEngine::Drop(const DocumentHandle& handle, const absl::Status& reason) {
  const auto it = documents_.find(handle.incarnation);
  if (it->second.sink != nullptr) it->second.sink->OnEvent(FailedEvent{reason, Phase::kPrefill});
  documents_.erase(it);
  changed_.NotifyAll();
}

absl::Status FakeEngine::FailDocument(const DocumentHandle& handle, const absl::Status& error) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Fail(handle, error));
  Drop(handle, error);
  return absl::OkStatus();
}

void FakeEngine::PauseDocument(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  const auto it = documents_.find(handle.incarnation);
  if (it == documents_.end()) return;
  it->second.paused = true;
  it->second.sink = nullptr;
  changed_.NotifyAll();
}

absl::Status FakeEngine::UpdateDocument(const DocumentHandle& handle,
                                        absl::FunctionRef<void(DocumentAttributes*)> change,
                                        Updated done) {
  FOLIO_RETURN_IF_ERROR(directory_.UpdateAttributes(handle, change).status());
  MutexLock lock(&mu_);
  if (updated_.has_value()) done(*updated_);
  return absl::OkStatus();
}

void FakeEngine::UpdateDocuments(std::optional<absl::Status> written) {
  MutexLock lock(&mu_);
  updated_ = std::move(written);
}

absl::Status FakeEngine::DeleteDocument(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Remove(handle));
  if (documents_.contains(handle.incarnation)) {
    Drop(handle, absl::NotFoundError(absl::StrCat("document '", handle.id, "' was deleted")));
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::SaveDocument(const DocumentHandle& handle) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(handle));
  MutexLock lock(&mu_);
  if (!stores_) return absl::FailedPreconditionError("documents are not stored");
  FOLIO_RETURN_IF_ERROR(CheckFinished(document));
  if (saved_.has_value()) directory_.SetSaved(handle, *saved_);
  ++num_saves_;
  changed_.NotifyAll();
  return absl::OkStatus();
}

EngineStats FakeEngine::Stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

std::vector<TenantUse> FakeEngine::TenantUses() const {
  MutexLock lock(&mu_);
  return tenant_uses_;
}

void FakeEngine::StopAdmission() {
  MutexLock lock(&mu_);
  draining_ = true;
  changed_.NotifyAll();
}

void FakeEngine::set_stats(const EngineStats& stats) {
  MutexLock lock(&mu_);
  stats_ = stats;
}

void FakeEngine::set_tenant_uses(std::vector<TenantUse> uses) {
  MutexLock lock(&mu_);
  tenant_uses_ = std::move(uses);
}

void FakeEngine::RefuseQueue(absl::Status status) {
  MutexLock lock(&mu_);
  queue_status_ = std::move(status);
}

void FakeEngine::RefuseSubmitAfter(int count, absl::Status status) {
  MutexLock lock(&mu_);
  submit_status_ = std::move(status);
  num_before_refusal_ = count;
}

void FakeEngine::RefuseDocumentSizes(absl::Status status) {
  MutexLock lock(&mu_);
  size_status_ = std::move(status);
}

void FakeEngine::SaveDocuments(std::optional<absl::StatusOr<int64_t>> stored_bytes) {
  MutexLock lock(&mu_);
  stores_ = true;
  saved_ = std::move(stored_bytes);
}

void FakeEngine::WaitForSave() {
  MutexLock lock(&mu_);
  while (num_saves_ == 0) changed_.Wait(&mu_);
}

void FakeEngine::HoldPrefill() {
  MutexLock lock(&mu_);
  hold_prefill_ = true;
}

GenerateSpec FakeEngine::WaitForRequest(RequestId count) {
  MutexLock lock(&mu_);
  while (requests_.size() < count) changed_.Wait(&mu_);
  return requests_.at(count).spec;
}

void FakeEngine::Emit(Event event, RequestId id) {
  MutexLock lock(&mu_);
  EmitTo(&requests_.at(id), std::move(event));
}

const FakeEngine::Document& FakeEngine::DocumentOf(const std::string& id) const {
  return documents_.at(directory_.Find(id)->handle.incarnation);
}

void FakeEngine::EmitToDocument(const std::string& id, Event event) {
  MutexLock lock(&mu_);
  const DocumentHandle handle = directory_.Find(id)->handle;
  if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    directory_.Fail(handle, failed->status).IgnoreError();
    return Drop(handle, failed->status);
  }
  if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    directory_.SetProgress(handle, {.prefilled_tokens = prefill->processed_tokens});
  }
  Document& document = documents_.at(handle.incarnation);
  const bool last = std::holds_alternative<CompletedEvent>(event);
  if (document.sink != nullptr) document.sink->OnEvent(std::move(event));
  if (last) document.sink = nullptr;
}

absl::Status FakeEngine::WaitForCancel(RequestId id) {
  MutexLock lock(&mu_);
  while (!requests_.contains(id) || !requests_.at(id).cancelled) changed_.Wait(&mu_);
  return *requests_.at(id).cancelled;
}

void FakeEngine::WaitForHeldBack(bool held_back, RequestId id) {
  MutexLock lock(&mu_);
  while (!requests_.contains(id) || requests_.at(id).held_back != held_back) changed_.Wait(&mu_);
}

bool FakeEngine::IsHeldBack(RequestId id) const {
  MutexLock lock(&mu_);
  return requests_.contains(id) && requests_.at(id).held_back;
}

void FakeEngine::SetRoom(bool room) {
  MutexLock lock(&mu_);
  room_ = room;
  if (!room) return;
  for (const DocumentInfo& document : directory_.List("", 1000)) {
    directory_.SetShortOfRoom(document.handle, false);
  }
}

void FakeEngine::WaitForAppends(int count) {
  MutexLock lock(&mu_);
  while (num_appends_ < count) changed_.Wait(&mu_);
}

void FakeEngine::AnswerAtOnce() {
  MutexLock lock(&mu_);
  answers_at_once_ = true;
}

void FakeEngine::WaitForPause(const std::string& id) {
  MutexLock lock(&mu_);
  while (!DocumentOf(id).paused) changed_.Wait(&mu_);
}

bool FakeEngine::IsPaused(const std::string& id) const {
  MutexLock lock(&mu_);
  return DocumentOf(id).paused;
}

void FakeEngine::WaitForState(const std::string& id, DocumentState state) {
  MutexLock lock(&mu_);
  while (directory_.Find(id)->state != state) changed_.Wait(&mu_);
}

std::vector<int32_t> FakeEngine::DocumentTokens(const std::string& id) const {
  MutexLock lock(&mu_);
  return DocumentOf(id).tokens;
}

int FakeEngine::num_running() const {
  MutexLock lock(&mu_);
  int running = 0;
  for (const auto& [id, request] : requests_) running += request.sink != nullptr ? 1 : 0;
  return running;
}

void FakeEngine::WaitForDrain() {
  MutexLock lock(&mu_);
  while (!draining_) changed_.Wait(&mu_);
}

}  // namespace folio::testing
