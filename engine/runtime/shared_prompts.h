#pragma once

#include <memory>
#include <unordered_map>

#include "engine/runtime/generation.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/sequence.h"
#include "engine/sched/tenant_account.h"
#include "engine/types/request.h"

namespace folio {

// The prompt of several answers (GenerateSpec::num_answers) without its last token, from whose
// logits each of them draws. It is computed once, by a sequence of its own that none of the answers
// owns, and each answer forks it as a question forks its document: so it matters to nobody which of
// them are cancelled, fail or give their place away.
struct SharedPrompt {
  AttentionSpec attention;
  TenantAccounts::Account account;  // of who pays for it
  Sequence sequence;
  bool admitted = false;
  int num_users = 0;  // answers that wait for it or read it
  // The answer that it is computed for, as far as anybody asks: the others find it. 0: that one is
  // gone.
  RequestId payer = 0;

  bool complete() const { return admitted && sequence.num_pending() == 0; }
  bool IsFoundBy(const Generation& answer) const { return answer.sequence.id != payer; }
};

// Whether a request is one of several answers that share their prompt. Not if log-probabilities of
// the prompt are asked for: they come from the logits of all its rows, which each answer computes.
bool SharesPrompt(const GenerateSpec& spec);

// The prompts that requests share. Engine thread only; borrows the rest.
class SharedPrompts {
 public:
  SharedPrompts(Scheduler* scheduler, TenantAccounts* accounts)
      : scheduler_(scheduler), accounts_(accounts) {}

  // The generation reads the prompt with the others of its group, if it shares it and asks the same
  // of the model as they do. REQUIRES: what it reads of a document and what it asks is known; it
  // holds nothing of the cache. Without host memory it throws std::bad_alloc and has done nothing.
  void Join(Generation* generation);
  // It does not any more, and has what the prompt has of a document as its prefix again. The last
  // one takes the prompt along. REQUIRES: it has joined, and holds nothing of the cache.
  void Leave(Generation* generation);

  // Frees the memory of prompts, which are computed again when there is room: of all but one (or
  // null), and of those of one tenant only, if one is given. False if there was none. REQUIRES: no
  // answer reads them.
  bool LetGo(const SharedPrompt* but, const TenantShare* tenant);

  // The prompt that a sequence computes; null: it is none.
  SharedPrompt* PromptOf(const Sequence* sequence);
  // Whether any of them has memory.
  bool hold_memory() const;

 private:
  std::unique_ptr<SharedPrompt> Make(const Generation& generation);

  Scheduler* const scheduler_;
  TenantAccounts* const accounts_;
  std::unordered_map<RequestId, std::unique_ptr<SharedPrompt>> prompts_;  // by the first answer
};

}  // namespace folio
