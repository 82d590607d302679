#include "engine/attention/plan_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

using Keys = AttentionStage::Keys;
using Distance = AttentionStage::Distance;

int CountStages(const AttentionPlan& plan, Keys keys) {
  return static_cast<int>(std::count_if(plan.stages.begin(), plan.stages.end(),
                                        [keys](const auto& stage) { return stage.keys == keys; }));
}

// What is wrong with a choice of chunks; empty: nothing.
std::string ChunkFault(const AttentionPlan& plan, int page_tokens) {
  const ChunkSelection& selection = plan.selection;
  if (CountStages(plan, Keys::kChunks) != (selection.enabled() ? 1 : 0)) {
    return "needs one stage of chunks exactly if it chooses chunks";
  }
  if (!selection.enabled()) return "";
  if (selection.chunk_tokens % page_tokens != 0) {
    return absl::StrCat("has chunks of ", selection.chunk_tokens,
                        " tokens, must have whole pages of ", page_tokens);
  }
  if (selection.num_free_picks < 1) return "chooses chunks, but no head may pick one";
  if (plan.retention.window_tokens != kUnbounded) return "chooses chunks, but drops pages";
  return "";
}

std::string FaultOf(const AttentionPlan& plan, int page_tokens) {
  if (plan.stages.empty() || plan.stages.size() > kMaxStages) {
    return absl::StrCat("has ", plan.stages.size(), " stages, must have 1 to ", kMaxStages);
  }
  if (plan.retention.num_sinks < 0 || plan.retention.num_sinks > kMaxSinks) {
    return absl::StrCat("keeps ", plan.retention.num_sinks, " sinks, must keep 0 to ", kMaxSinks);
  }
  if (plan.top_tokens.count < 0 || plan.top_tokens.count > kMaxTopTokens) {
    return absl::StrCat("chooses ", plan.top_tokens.count, " tokens, must choose 0 to ",
                        kMaxTopTokens);
  }
  if (CountStages(plan, Keys::kSinks) > 1) return "reads sinks in two stages";
  if (CountStages(plan, Keys::kTopTokens) != (plan.top_tokens.count > 0 ? 1 : 0)) {
    return "needs one stage of chosen tokens exactly if it chooses tokens";
  }
  for (const AttentionStage& stage : plan.stages) {
    const bool pinned = stage.distance == Distance::kPinned;
    const bool of_pages = stage.keys == Keys::kContext || stage.keys == Keys::kTopTokens;
    if (pinned && of_pages && plan.key_form != KeyForm::kRaw) {
      return "pins the distance of keys that are stored rotated";
    }
  }
  return ChunkFault(plan, page_tokens);
}

}  // namespace

absl::Status CheckPlan(const AttentionPlan& plan, int page_tokens) {
  const std::string fault = FaultOf(plan, page_tokens);
  if (fault.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the plan of the strategy ", fault));
}

}  // namespace folio
