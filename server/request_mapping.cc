#include "server/request_mapping.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"
#include "engine/types/document_name.h"
#include "proto/method.h"
#include "server/document_attributes.h"
#include "server/request_id.h"
#include "server/sampling_mapping.h"

namespace folio::server {
namespace {

constexpr uint32_t kMaxEvidenceSpans = 64;
constexpr uint32_t kMinHeartbeatMs = 100;
constexpr uint32_t kMaxHeartbeatMs = 60000;

void ResponseFromProto(const v1::ResponseOptions& in, GenerateSpec* spec, FieldViolations* bad) {
  const auto check_top = [bad](const char* field, uint32_t number) {
    if (number <= kMaxTopLogprobs) return;
    bad->push_back({field, absl::StrCat("is ", number, ", the limit is ", kMaxTopLogprobs)});
  };
  check_top("response.top_logprobs", in.top_logprobs());
  check_top("response.prompt_top_logprobs", in.prompt_top_logprobs());
  if (in.has_heartbeat_interval_ms() && (in.heartbeat_interval_ms() < kMinHeartbeatMs ||
                                         in.heartbeat_interval_ms() > kMaxHeartbeatMs)) {
    bad->push_back({"response.heartbeat_interval_ms",
                    absl::StrCat("is ", in.heartbeat_interval_ms(), ", must be in [",
                                 kMinHeartbeatMs, ", ", kMaxHeartbeatMs, "]")});
  }
  if (in.evidence_spans() > kMaxEvidenceSpans) {
    bad->push_back({"response.evidence_spans", absl::StrCat("is ", in.evidence_spans(),
                                                            ", the limit is ", kMaxEvidenceSpans)});
  }
  spec->max_evidence_spans = static_cast<int>(in.evidence_spans());
  spec->layer_evidence = in.layer_evidence();
  spec->logprobs = in.logprobs();
  spec->num_top_logprobs = static_cast<int>(in.top_logprobs());
  spec->prompt_logprobs = in.prompt_logprobs();
  spec->num_prompt_top_logprobs = static_cast<int>(in.prompt_top_logprobs());
  spec->echo = in.echo();
}

v1::MethodParameter ToProto(const Param& param) {
  v1::MethodParameter out;
  out.set_name(param.name);
  out.set_min(param.min);
  out.set_max(param.max);
  switch (param.kind) {
    case ParamKind::kInteger:
      out.set_kind(v1::MethodParameter::KIND_INTEGER);
      out.set_default_value(static_cast<double>(std::get<int64_t>(param.default_value)));
      break;
    case ParamKind::kReal:
      out.set_kind(v1::MethodParameter::KIND_REAL);
      out.set_default_value(std::get<double>(param.default_value));
      break;
    case ParamKind::kFlag:
      out.set_kind(v1::MethodParameter::KIND_FLAG);
      out.set_default_value(std::get<bool>(param.default_value) ? 1 : 0);
      break;
    case ParamKind::kChoice:
      out.set_kind(v1::MethodParameter::KIND_CHOICE);
      out.set_default_choice(std::get<std::string>(param.default_value));
      for (const std::string& choice : param.choices) {
        out.add_choices(choice);
        if (choice == out.default_choice()) out.set_default_value(out.choices_size());
      }
      out.set_min(1);
      out.set_max(out.choices_size());
      break;
  }
  return out;
}

// To a Delta or to PromptLogprobs.
template <typename Message>
void AddLogprobs(const std::vector<TokenLogprob>& logprobs,
                 const std::vector<std::vector<TokenLogprob>>& top_logprobs, Message* out) {
  const auto fill = [](const TokenLogprob& in, v1::TokenLogprob* to) {
    to->set_token_id(static_cast<uint32_t>(in.token));
    to->set_logprob(in.logprob);
  };
  for (const TokenLogprob& logprob : logprobs) fill(logprob, out->add_logprobs());
  for (const auto& candidates : top_logprobs) {
    v1::TopLogprobs* top = out->add_top_logprobs();
    for (const TokenLogprob& candidate : candidates) fill(candidate, top->add_candidates());
  }
}

// The whole characters that tokens stand for, spaces included.
std::string TextOf(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string text;
  for (int32_t token : tokens) text += tokenizer.pieces()[token].text;
  size_t begin = 0;
  while (begin < text.size() && (text[begin] & 0xC0) == 0x80) ++begin;
  text.erase(0, begin);
  text.resize(ValidUtf8Prefix(text));
  return text;
}

v1::Document::State ToProto(DocumentState state) {
  switch (state) {
    case DocumentState::kUploading:
      return v1::Document::STATE_UPLOADING;
    case DocumentState::kPrefilling:
      return v1::Document::STATE_PREFILLING;
    case DocumentState::kReady:
      return v1::Document::STATE_READY;
    case DocumentState::kFailed:
      return v1::Document::STATE_FAILED;
  }
  return v1::Document::STATE_UNSPECIFIED;
}

}  // namespace

AttentionSpec FromProto(const v1::AttentionStrategy& strategy, const v1::PositionScheme& position) {
  v1::MethodFields of_strategy = v1::ReadMethod(strategy);
  v1::MethodFields of_position = v1::ReadMethod(position);
  return {{std::move(of_strategy.name), std::move(of_strategy.parameters)},
          {std::move(of_position.name), std::move(of_position.parameters)}};
}

v1::AttentionStrategy ToProto(const StrategySpec& spec) {
  v1::AttentionStrategy out;
  v1::WriteMethod({spec.name, spec.params}, &out);
  return out;
}

v1::PositionScheme ToProto(const PositionSpec& spec) {
  v1::PositionScheme out;
  v1::WriteMethod({spec.name, spec.params}, &out);
  return out;
}

void ToProto(const Catalogue& catalogue, v1::ListStrategiesResponse* out) {
  const auto fill = [](const MethodInfo& info, v1::Method* method) {
    method->set_name(info.name);
    method->set_source(info.source);
    method->set_refused(info.refused.value_or(""));
    for (const Param& param : info.params) *method->add_parameters() = ToProto(param);
    for (const auto& [position, reason] : info.refused_positions) {
      v1::Refusal* to = method->add_refused_positions();
      to->set_position(position);
      to->set_reason(reason);
    }
  };
  for (const MethodInfo& info : catalogue.strategies) fill(info, out->add_strategies());
  for (const MethodInfo& info : catalogue.positions) fill(info, out->add_positions());
}

FieldViolation BadAttention(const absl::Status& status, const std::string& prefix) {
  const auto field = status.GetPayload(kFieldPayload);
  return {absl::StrCat(prefix, field ? std::string(*field) : "strategy"),
          std::string(status.message())};
}

void FromProto(const v1::GenerateRequest& request, const ServerOptions& options, GenerateSpec* spec,
               FieldViolations* bad) {
  if (std::string wrong = WhatIsWrongWithRequestId(request.request_id()); !wrong.empty()) {
    bad->push_back({"request_id", std::move(wrong)});
  }
  spec->attention = FromProto(request.strategy(), request.position());
  spec->attention.adapter.name = request.adapter();
  SamplingFromProto(request.sampling(), &spec->sampling, bad);
  StoppingFromProto(request.stopping(), options, &spec->stop, bad);
  ResponseFromProto(request.response(), spec, bad);
  CheckPriority(request.priority(), "priority", bad);
  spec->priority = request.priority();
}

void CheckPriority(int32_t priority, const std::string& field, FieldViolations* bad) {
  constexpr int32_t kMost = 100;
  if (priority >= -kMost && priority <= kMost) return;
  bad->push_back(
      {field, absl::StrCat("is ", priority, ", must be in [", -kMost, ", ", kMost, "]")});
}

void ToProto(const DeltaEvent& delta, v1::GenerateEvent* event) {
  v1::Delta* out = event->mutable_delta();
  out->set_text(delta.text);
  for (int32_t token : delta.tokens) out->add_token_ids(static_cast<uint32_t>(token));
  AddLogprobs(delta.logprobs, delta.top_logprobs, out);
}

void ToProto(const PromptEvent& prompt, v1::GenerateEvent* event) {
  if (prompt.tokens.empty()) {
    v1::PromptLogprobs* out = event->mutable_prompt_logprobs();
    out->set_first_position(static_cast<uint64_t>(prompt.first_position));
    return AddLogprobs(prompt.logprobs, prompt.top_logprobs, out);
  }
  ToProto(DeltaEvent{prompt.text, prompt.tokens, prompt.logprobs, prompt.top_logprobs}, event);
  event->mutable_delta()->set_echo(true);
}

void ToProto(const PrefillEvent& prefill, v1::GenerateEvent* event) {
  v1::PrefillProgress* out = event->mutable_prefill();
  out->set_total_tokens(prefill.total_tokens);
  out->set_cached_tokens(prefill.cached_tokens);
  out->set_processed_tokens(prefill.processed_tokens);
}

void ToProto(const EvidenceEvent& evidence, const Tokenizer& tokenizer,
             const DocumentUpload* document, v1::GenerateEvent* event) {
  v1::Evidence* out = event->mutable_evidence();
  for (const EvidenceEvent::Span& span : evidence.spans) {
    v1::EvidenceSpan* to = out->add_spans();
    to->set_token_begin(static_cast<uint64_t>(span.token_begin));
    to->set_token_end(static_cast<uint64_t>(span.token_end));
    to->set_votes(static_cast<uint64_t>(span.votes));
    for (int64_t votes : span.votes_by_layer_group) {
      to->add_votes_by_layer_group(static_cast<uint64_t>(votes));
    }
    to->set_score(span.share);
    to->set_text(TextOf(tokenizer, span.tokens));
    if (document == nullptr) continue;
    const auto begin = document->ByteOffset(span.token_begin);
    const auto end = document->ByteOffset(span.token_end);
    if (!begin || !end) continue;
    to->set_byte_begin(*begin);
    to->set_byte_end(*end);
  }
}

v1::LayerEvidence ToProto(const EvidenceEvent& evidence, size_t layer) {
  v1::LayerEvidence out;
  out.set_layer(static_cast<uint32_t>(layer));
  out.set_chunk_tokens(static_cast<uint32_t>(evidence.chunk_tokens));
  out.set_candidates_end(static_cast<uint64_t>(evidence.candidates_end));
  for (const EvidenceEvent::Layer::Chunk& chunk : evidence.layers[layer].chunks) {
    out.add_chunks(static_cast<uint64_t>(chunk.chunk));
    out.add_votes(static_cast<uint64_t>(chunk.votes));
    out.add_first_votes(static_cast<uint64_t>(chunk.first_votes));
  }
  return out;
}

void ToProto(const CompletedEvent& completed, v1::GenerateEvent* event) {
  v1::Completed* out = event->mutable_completed();
  out->set_finish_reason(completed.reason == FinishReason::kStop
                             ? v1::Completed::FINISH_REASON_STOP
                             : v1::Completed::FINISH_REASON_LENGTH);
  if (completed.stop_token) out->set_stop_token_id(static_cast<uint32_t>(*completed.stop_token));
  if (completed.stop_string) out->set_stop_string(*completed.stop_string);
  out->mutable_usage()->set_prompt_tokens(completed.usage.prompt_tokens);
  out->mutable_usage()->set_cached_tokens(completed.usage.cached_tokens);
  out->mutable_usage()->set_completion_tokens(completed.usage.completion_tokens);
  const Timings& timings = completed.timings;
  out->mutable_timings()->set_queue_seconds(timings.queue_seconds);
  out->mutable_timings()->set_prefill_seconds(timings.prefill_seconds);
  out->mutable_timings()->set_time_to_first_token_seconds(timings.time_to_first_token_seconds);
  out->mutable_timings()->set_decode_seconds(timings.decode_seconds);
  if (timings.decode_seconds > 0) {
    out->mutable_timings()->set_tokens_per_second(
        static_cast<double>(completed.usage.completion_tokens - 1) / timings.decode_seconds);
  }
  ToProto(completed.memory, out->mutable_memory());
  ToProto(completed.scheduling, out->mutable_scheduling());
}

void ToProto(const Scheduling& scheduling, v1::Scheduling* out) {
  out->set_turn_wait_seconds(scheduling.turn_seconds);
  out->set_memory_wait_seconds(scheduling.memory_seconds);
  out->set_document_wait_seconds(scheduling.document_seconds);
  out->set_steps(static_cast<uint64_t>(scheduling.num_steps));
  out->set_mean_step_requests(scheduling.mean_step_requests);
  out->set_step_token_share(scheduling.step_token_share);
  out->set_times_preempted(static_cast<uint32_t>(scheduling.times_preempted));
  out->set_times_restarted(static_cast<uint32_t>(scheduling.times_restarted));
}

void ToProto(const MemoryReceipt& receipt, v1::MemoryReceipt* out) {
  out->set_device_kv_bytes_peak(static_cast<uint64_t>(receipt.device_kv_bytes_peak));
  out->set_host_kv_bytes_peak(static_cast<uint64_t>(receipt.host_kv_bytes_peak));
  out->set_disk_kv_bytes_peak(static_cast<uint64_t>(receipt.disk_kv_bytes_peak));
  out->set_shared_kv_bytes(static_cast<uint64_t>(receipt.shared_kv_bytes));
  out->set_summary_bytes_peak(static_cast<uint64_t>(receipt.summary_bytes_peak));
  out->set_attended_tokens_mean(receipt.attended_tokens_mean);
  out->set_slice_hits(static_cast<uint64_t>(receipt.slice_hits));
  out->set_slice_misses(static_cast<uint64_t>(receipt.slice_misses));
  out->set_host_read_bytes(static_cast<uint64_t>(receipt.host_read_bytes));
  out->set_disk_read_bytes(static_cast<uint64_t>(receipt.disk_read_bytes));
  out->set_disk_wait_seconds(receipt.disk_wait_seconds);
}

void ToProto(const DocumentInfo& info, v1::Document* document) {
  document->set_document_id(std::string(DocumentName(info.handle.id)));
  document->set_state(ToProto(info.state));
  document->set_error(std::string(info.error.message()));
  document->set_token_count(static_cast<uint64_t>(info.known_tokens));
  document->set_prefilled_tokens(static_cast<uint64_t>(info.prefilled_tokens));
  *document->mutable_strategy() = ToProto(info.attention.strategy);
  *document->mutable_position() = ToProto(info.attention.position);
  document->set_device_kv_bytes(static_cast<uint64_t>(info.device_kv_bytes));
  document->set_host_kv_bytes(static_cast<uint64_t>(info.host_kv_bytes));
  document->set_disk_kv_bytes(static_cast<uint64_t>(info.disk_kv_bytes));
  document->set_summary_bytes(static_cast<uint64_t>(info.summary_bytes));
  document->set_saved(info.saved);
  document->set_stored_bytes(static_cast<uint64_t>(info.stored_bytes));
  document->set_save_error(std::string(info.save_error.message()));
  document->set_adapter(info.attention.adapter.name);
  const DocumentUpload& upload = *DocumentUpload::Of(info);
  document->set_display_name(upload.display_name);
  document->mutable_create_time()->set_seconds(upload.create_time);
  document->set_size_bytes(upload.size_bytes());
  document->set_format(upload.prompt_format.empty() ? v1::PROMPT_FORMAT_RAW
                                                    : v1::PROMPT_FORMAT_CHAT);
  ToProto(info.attributes, document);
  if (info.state == DocumentState::kUploading) {
    document->mutable_expire_time()->set_seconds(upload.expire_time());
    document->set_saved_size_bytes(static_cast<uint64_t>(info.saved_text_bytes));
  } else if (info.state != DocumentState::kPrefilling) {
    SetExpireTime(info.attributes, document);
  }
}

bool IsValidDocumentId(const std::string& id) {
  if (id.empty() || id.size() > 64) return false;
  for (char c : id) {
    const bool ok = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

}  // namespace folio::server
