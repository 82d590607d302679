#include "engine/runtime/shared_prompts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace folio {
namespace {

RequestId GroupOf(const Generation& generation) {
  const RequestId first = generation.spec.first_answer;
  return first != 0 ? first : generation.sequence.id;
}

// Whether the cache of the prompt is that of this answer's own, and the same tenant's.
bool Fits(const SharedPrompt& prompt, const Generation& generation) {
  const Sequence& shared = prompt.sequence;
  const Sequence& answer = generation.sequence;
  const auto end_of = [&](const Sequence& sequence) {
    return sequence.tokens->begin() + (shared.num_known - shared.tokens_begin);
  };
  return prompt.attention == generation.spec.attention && shared.prefix == answer.prefix &&
         shared.claim.tenant == answer.claim.tenant && shared.tokens_begin == answer.tokens_begin &&
         shared.num_known == answer.num_prompt - 1 &&
         std::equal(shared.tokens->begin(), end_of(shared), answer.tokens->begin(), end_of(answer));
}

}  // namespace

bool SharesPrompt(const GenerateSpec& spec) {
  return spec.num_answers > 1 && !spec.prompt_logprobs;
}

std::unique_ptr<SharedPrompt> SharedPrompts::Make(const Generation& generation) {
  const GenerateSpec& spec = generation.spec;
  const Sequence& answer = generation.sequence;
  auto prompt = std::make_unique<SharedPrompt>();
  prompt->attention = spec.attention;
  Sequence& shared = prompt->sequence;
  shared.plan = answer.plan;
  // Those of the answer, which only adds to them.
  shared.tokens = answer.tokens;
  shared.tokens_begin = answer.tokens_begin;
  shared.num_known = shared.max_tokens = shared.num_prompt = answer.num_prompt - 1;
  shared.prefix = answer.prefix;
  if (spec.tenant != nullptr) {
    prompt->account = accounts_->Open(spec.tenant);
    shared.claim.tenant = &prompt->account->share;
  }
  shared.claim.priority = spec.priority;
  prompt->payer = answer.id;
  scheduler_->Join(&shared);
  return prompt;
}

void SharedPrompts::Join(Generation* generation) {
  Sequence& answer = generation->sequence;
  // Of one token nothing is left to share.
  if (!SharesPrompt(generation->spec) || answer.num_prompt - 1 == answer.tokens_begin) return;
  auto found = prompts_.find(GroupOf(*generation));
  const bool is_first = found == prompts_.end();
  if (is_first) found = prompts_.emplace(GroupOf(*generation), Make(*generation)).first;
  SharedPrompt* const prompt = found->second.get();
  if (!is_first && !Fits(*prompt, *generation)) return;
  ++prompt->num_users;
  generation->shared_prompt = prompt;
  answer.prefix = &prompt->sequence;
}

void SharedPrompts::Leave(Generation* generation) {
  SharedPrompt* const prompt = std::exchange(generation->shared_prompt, nullptr);
  generation->sequence.prefix = prompt->sequence.prefix;
  if (!prompt->IsFoundBy(*generation)) prompt->payer = 0;
  if (--prompt->num_users > 0) return;
  scheduler_->Remove(&prompt->sequence);
  prompts_.erase(GroupOf(*generation));
}

bool SharedPrompts::LetGo(const SharedPrompt* but, const TenantShare* tenant) {
  bool any = false;
  for (const auto& [first, prompt] : prompts_) {
    Sequence& sequence = prompt->sequence;
    const bool is_of_tenant = tenant == nullptr || tenant == sequence.claim.tenant;
    if (prompt.get() == but || !is_of_tenant || !std::exchange(prompt->admitted, false)) continue;
    scheduler_->Remove(&sequence);
    sequence.num_in_kv = 0;
    any = true;
  }
  return any;
}

bool SharedPrompts::hold_memory() const {
  return std::any_of(prompts_.begin(), prompts_.end(),
                     [](const auto& entry) { return entry.second->admitted; });
}

SharedPrompt* SharedPrompts::PromptOf(const Sequence* sequence) {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(), [sequence](const auto& entry) {
    return &entry.second->sequence == sequence;
  });
  return found == prompts_.end() ? nullptr : found->second.get();
}

}  // namespace folio
