#include "engine/runtime/scoring_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/runtime/memory_receipt.h"
#include "engine/runtime/shortage.h"

namespace folio {
namespace {

// Scored tokens that are forgotten at a time.
constexpr int64_t kForgetTokens = 1024;

}  // namespace

void ScoringTable::Open(RequestId id, const AttentionSpec& attention,
                        std::shared_ptr<EventSink> sink, const Payer& payer,
                        TenantAccounts::Account account) {
  auto stream = std::make_unique<Scoring>();
  Sequence& sequence = stream->sequence;
  sequence.id = id;
  sequence.plan = PlanFor(attention, model_);
  sequence.tokens = std::make_shared<std::vector<int32_t>>();
  sequence.num_prompt = kUnbounded;
  sequence.scores = true;
  if (payer.tenant != nullptr) {
    account->share.Set(payer.tenant);
    sequence.claim.tenant = &account->share;
    sequence.claim.priority = payer.priority;
  }
  scheduler_->Join(&sequence);
  stream->account = std::move(account);
  stream->sink = std::move(sink);
  std::unique_ptr<Scoring>& opened = streams_[id];
  opened = std::move(stream);
  if (!scheduler_->Admit(&opened->sequence)) FailForMemory(id);
}

void ScoringTable::Append(RequestId id, const std::vector<int32_t>& tokens) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  Sequence& sequence = it->second->sequence;
  sequence.tokens->insert(sequence.tokens->end(), tokens.begin(), tokens.end());
  const int64_t total = sequence.tokens_begin + static_cast<int64_t>(sequence.tokens->size());
  sequence.num_known = std::max<int64_t>(0, total - 1);
  sequence.max_tokens = sequence.num_known;
  if (!scheduler_->Grow(&sequence)) FailForMemory(id);
}

void ScoringTable::Finish(RequestId id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  it->second->finished = true;
  CompleteIfDone(id);
}

void ScoringTable::Fail(RequestId id, absl::Status status) {
  const auto it = streams_.find(id);
  it->second->sink->OnEvent(FailedEvent{std::move(status), Phase::kPrefill});
  scheduler_->Remove(&it->second->sequence);
  streams_.erase(it);
}

void ScoringTable::FailForMemory(RequestId id) {
  const Sequence& sequence = streams_.at(id)->sequence;
  Fail(id, StatusOf([&] {
         const TenantShare& share = sequence.claim.share();
         KvShortage shortage{.who = absl::StrCat("the stream at token ", sequence.max_tokens),
                             .needed_bytes = scheduler_->BytesNeeded(sequence),
                             .kept_bytes = documents_->kept_bytes(),
                             .capacity_bytes = store_->capacity_bytes()};
         if (share.MayReserve(shortage.needed_bytes - sequence.reserved_bytes)) {
           return NoRoomInCache(shortage, model_);
         }
         shortage.kept_bytes = share.reserved_bytes - sequence.reserved_bytes;
         return NoRoomForTenant(shortage, share.tenant->limits.max_kv_bytes);
       }));
}

bool ScoringTable::Cancel(RequestId id, const absl::Status& reason) {
  if (!streams_.contains(id)) return false;
  Fail(id, reason);
  return true;
}

void ScoringTable::FailAll(const absl::Status& status) {
  while (!streams_.empty()) Fail(streams_.begin()->first, status);
}

void ScoringTable::CompleteIfDone(RequestId id) {
  const auto it = streams_.find(id);
  Scoring& stream = *it->second;
  if (!stream.finished || stream.sequence.num_pending() > 0) return;
  CompletedEvent done;
  done.usage.prompt_tokens =
      stream.sequence.tokens_begin + static_cast<int64_t>(stream.sequence.tokens->size());
  done.memory = stream.memory;
  stream.sink->OnEvent(std::move(done));
  scheduler_->Remove(&stream.sequence);
  streams_.erase(it);
}

void ScoringTable::AfterStep(ModelRunner::Scores scores) {
  const auto it = streams_.find(scores.id);
  if (it == streams_.end()) return;
  if (scores.not_finite.has_value()) return Fail(scores.id, NotFiniteError(*scores.not_finite));
  Scoring& stream = *it->second;
  Sequence& sequence = stream.sequence;
  Add(store_->FootprintOf(sequence.kv), &stream.memory);
  stream.sink->OnEvent(ScoredEvent{scores.first_position, std::move(scores.logprobs)});
  const int64_t consumed = sequence.num_in_kv - sequence.tokens_begin;
  if (consumed >= kForgetTokens) {
    sequence.tokens->erase(sequence.tokens->begin(), sequence.tokens->begin() + consumed);
    sequence.tokens_begin += consumed;
  }
  CompleteIfDone(scores.id);
}

}  // namespace folio
