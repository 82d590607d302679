#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/attention/strategies/strategies.h"
#include "engine/types/limits.h"

namespace folio {
namespace {

using Selection = ChunkSelection;

constexpr int64_t kMinChunks = kNumForcedChunks + 1;  // and at least one free pick

constexpr NamedValue<Selection::Scorer> kScorers[] = {
    {"long_heads", Selection::Scorer::kLongHeads},
    {"mean_key", Selection::Scorer::kMeanKey},
    {"quest", Selection::Scorer::kQuest},
    {"representatives", Selection::Scorer::kRepresentatives},
};
constexpr NamedValue<Selection::Share> kShares[] = {
    {"none", Selection::Share::kNone},
    {"group", Selection::Share::kGroup},
    {"layer", Selection::Share::kLayer},
    {"layers", Selection::Share::kLayers},
};
constexpr NamedValue<Selection::Order> kOrders[] = {
    {"best", Selection::Order::kBest},
    {"last", Selection::Order::kLast},
    {"random", Selection::Order::kRandom},
};

// LongHeads. Source: Lu et al. 2024, equations 1-3, with the rule of the released code that the
// chunk before the query's own is always seen (three forced chunks, num_chunks - 3 free picks per
// query head). The query sees itself in prefill as in decode, so both are the same function, unless
// one of the flags that replay the released code is set. Under scaled positions the prompt is read
// with them and the answer without (the paper's "LongHeads + PI / NTK"), unless scale_decode is
// set.
class LongHeadsStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "long_heads"; }
  std::string source() const override {
    return "Lu et al. 2024, LongHeads; the scorers quest and representatives adapt Quest (Tang et "
           "al. 2024) and InfLLM (Xiao et al. 2024) to chunk-local keys";
  }

  std::vector<Param> Params(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t length = limits.trained_length;
    const int64_t page = limits.page_tokens;
    const int64_t default_chunk = std::max(page, std::min<int64_t>(length / 16, 256) / page * page);
    const int64_t chunk = std::max<int64_t>(1, spec.IntOr("chunk_size", default_chunk));
    const int64_t default_attention = std::min<int64_t>(length, 4096) / chunk * chunk;
    const int64_t attention = spec.IntOr("attention_length", default_attention);
    // chunk_size and the next two are the names of the released code; inside, tokens say so.
    return {IntegerParam("chunk_size", default_chunk, page, std::max(page, length / kMinChunks)),
            IntegerParam("attention_length", default_attention, kMinChunks * page, length),
            IntegerParam("begin_selective_length", attention, kMinChunks * page, limits.reach()),
            ChoiceParam("scorer", kScorers),
            ChoiceParam("share", kShares),
            ChoiceParam("order", kOrders),
            FlagParam("drop_first_chunk"),
            FlagParam("scale_decode"),
            FlagParam("prompt_skips_self"),
            FlagParam("decode_boundary")};
  }

  absl::Status Validate(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t chunk = spec.Int("chunk_size");
    const int64_t attention = spec.Int("attention_length");
    const int64_t dense = spec.Int("begin_selective_length");
    if (chunk % limits.page_tokens != 0) {
      return Bad("chunk_size", chunk, "a multiple of the page size ", limits.page_tokens);
    }
    if (attention % chunk != 0) {
      return Bad("attention_length", attention, "a multiple of chunk_size ", chunk);
    }
    if (attention < kMinChunks * chunk) {
      return Bad("attention_length", attention, "at least 4 chunks, ", kMinChunks * chunk);
    }
    if (dense % chunk != 0) {
      return Bad("begin_selective_length", dense, "a multiple of chunk_size ", chunk);
    }
    if (dense < attention - chunk) {
      return Bad("begin_selective_length", dense,
                 "at least attention_length - chunk_size = ", attention - chunk);
    }
    return absl::OkStatus();
  }

  LegalRow legal() const override {
    return {.coca_strict = "chunk summaries are undefined for CoCA keys",
            .coca_slack = "chunk summaries are undefined for CoCA keys"};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    const int64_t chunk = spec.Int("chunk_size");
    const int64_t num_chunks = spec.Int("attention_length") / chunk;
    const int64_t dense = spec.Int("begin_selective_length");
    AttentionPlan plan;
    Selection& selection = plan.selection;
    selection.chunk_tokens = static_cast<int>(chunk);
    selection.num_free_picks = static_cast<int>(num_chunks - kNumForcedChunks);
    selection.scorer = ValueOf(kScorers, spec.Choice("scorer"));
    selection.share = ValueOf(kShares, spec.Choice("share"));
    selection.order = ValueOf(kOrders, spec.Choice("order"));
    selection.first_chunk = !spec.Flag("drop_first_chunk");
    selection.prompt_skips_self = spec.Flag("prompt_skips_self");
    selection.decode_boundary = spec.Flag("decode_boundary");
    plan.unscaled_decode = !spec.Flag("scale_decode");
    plan.stages.push_back({.rows_end = dense});
    plan.stages.push_back({.keys = AttentionStage::Keys::kChunks,
                           .distance = AttentionStage::Distance::kCompacted,
                           .rows_begin = dense});
    return plan;
  }

  // The released code chooses one token earlier in the answer than in the prompt.
  void FitToPrompt(int64_t prompt_tokens, AttentionPlan* plan) const override {
    int64_t& dense = plan->stages[0].rows_end;
    if (!plan->selection.decode_boundary || dense <= prompt_tokens) return;
    plan->stages[1].rows_begin = --dense;
  }

 private:
  static absl::Status Bad(const char* param, int64_t value, const char* rule, int64_t limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("long_heads.", param, " is ", value, ", must be ", rule, limit));
  }
};

}  // namespace

const AttentionStrategy& LongHeads() {
  static const LongHeadsStrategy strategy;
  return strategy;
}

}  // namespace folio
