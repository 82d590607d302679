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

const char* Name(Keys keys) {
  switch (keys) {
    case Keys::kContext:
      return "pages";
    case Keys::kSinks:
      return "sinks";
    case Keys::kChunks:
      return "chunks";
    case Keys::kTopTokens:
      return "chosen tokens";
  }
  return "";
}

const char* Name(Distance distance) {
  switch (distance) {
    case Distance::kTrue:
      return "their true distance";
    case Distance::kPinned:
      return "a pinned distance";
    case Distance::kClamped:
      return "a clamped distance";
    case Distance::kCompacted:
      return "a compacted distance";
  }
  return "";
}

// Whether backends read such keys at such a distance. The true distance of sinks is one clamped at
// kUnbounded.
bool IsRead(Keys keys, Distance distance) {
  switch (keys) {
    case Keys::kContext:
      return distance == Distance::kTrue || distance == Distance::kPinned;
    case Keys::kSinks:
      return distance == Distance::kPinned || distance == Distance::kClamped;
    case Keys::kChunks:
      return distance == Distance::kCompacted;
    case Keys::kTopTokens:
      return distance == Distance::kPinned;
  }
  return false;
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
    if (!IsRead(stage.keys, stage.distance)) {
      return absl::StrCat("sees ", Name(stage.keys), " at ", Name(stage.distance),
                          ", which no backend reads");
    }
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
