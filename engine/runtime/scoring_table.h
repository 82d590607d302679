#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/kv/kv_store.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/model_runner.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/tenant_account.h"
#include "engine/types/request.h"

namespace folio {

// A stream of tokens whose log-likelihoods are wanted.
struct Scoring {
  Sequence sequence;
  std::shared_ptr<EventSink> sink;
  bool finished = false;
  MemoryReceipt memory;
  TenantAccounts::Account account;
};

// Token streams of any length that are scored as they arrive. The last known token waits for its
// successor, which its logits predict. Under a strategy of bounded memory so is the stream: tokens
// that were scored are forgotten. Engine thread only; borrows the rest.
class ScoringTable {
 public:
  ScoringTable(const AttentionModel& model, Scheduler* scheduler, KvStore* store,
               const DocumentTable* documents)
      : model_(model), scheduler_(scheduler), store_(store), documents_(documents) {}

  // `account`: its tenant's; null: it has none.
  void Open(RequestId id, const AttentionSpec& attention, std::shared_ptr<EventSink> sink,
            const Payer& payer = {}, TenantAccounts::Account account = nullptr);
  // No memory: the stream fails with RESOURCE_EXHAUSTED.
  void Append(RequestId id, const std::vector<int32_t>& tokens);
  void Finish(RequestId id);
  // Returns whether there was one.
  bool Cancel(RequestId id, const absl::Status& reason);
  void FailAll(const absl::Status& status);
  bool empty() const { return streams_.empty(); }

  // To be called after each step with what it gave one stream. What it throws fails that stream.
  void AfterStep(ModelRunner::Scores scores);

 private:
  void Fail(RequestId id, absl::Status status);
  // The cache has no room for the stream.
  void FailForMemory(RequestId id);
  // Ends the stream if everything is scored.
  void CompleteIfDone(RequestId id);

  const AttentionModel model_;
  Scheduler* const scheduler_;
  KvStore* const store_;
  const DocumentTable* const documents_;
  std::map<RequestId, std::unique_ptr<Scoring>> streams_;
};

}  // namespace folio
