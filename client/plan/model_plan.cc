#include "client/plan/model_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/attention/position_schemes.h"
#include "engine/attention/scaling_laws.h"

namespace folio::plan {
namespace {

constexpr int64_t kSinks = 10;

// Chunk summaries of LongHeads are fp32, one per query head.
int64_t SummaryBytes(const ModelShape& shape, int64_t tokens) {
  const int64_t chunk = std::max(16, std::min(shape.trained_length / 16, 256));
  return tokens / chunk * shape.num_layers * shape.num_heads * shape.head_dim * 4;
}

// Of a page of integers, unless the trained length is very short.
constexpr int kPageTokens = 64;

int64_t BytesPerToken(const ModelShape& shape, int kv_bits) {
  const int64_t key_dim = shape.paired_keys ? shape.head_dim / 2 : shape.head_dim;
  const int64_t scale_bytes = kv_bits < 16 ? 4 + 4 * key_dim / kPageTokens : 0;
  return int64_t{shape.num_layers} * shape.num_kv_heads *
         ((key_dim + shape.head_dim) * kv_bits / 8 + scale_bytes);
}

std::vector<KvNeed> Needs(const ModelShape& shape, int kv_bits, int64_t target) {
  const int64_t bytes_per_token = BytesPerToken(shape, kv_bits);
  // Pages of a window stay wide.
  const int64_t wide_bytes = BytesPerToken(shape, std::max(kv_bits, 16));
  const int64_t trained = shape.trained_length;
  std::vector<KvNeed> needs;
  for (const int64_t tokens : {trained, target}) {
    const int64_t bounded = std::min(tokens, trained);
    const int64_t sinks = tokens > trained ? kSinks : 0;
    needs.push_back({"full", tokens, tokens * bytes_per_token});
    needs.push_back({"long_heads", tokens, tokens * bytes_per_token + SummaryBytes(shape, tokens)});
    needs.push_back({"lm_infinite", tokens, (bounded + sinks) * wide_bytes});
    if (target == trained) break;
  }
  return needs;
}

int64_t NeedOf(const ModelPlan& plan, const std::string& strategy, int64_t tokens) {
  for (const KvNeed& need : plan.needs) {
    if (need.strategy == strategy && need.tokens == tokens) return need.bytes;
  }
  return 0;
}

void Recommend(const ModelConfig& config, const PlanRequest& request, ModelPlan* plan) {
  const int64_t trained = config.shape.trained_length;
  const int64_t target = request.target_tokens;
  const int64_t budget = request.kv_budget_bytes;
  const auto fits = [&](const char* strategy) {
    return budget == 0 || NeedOf(*plan, strategy, target) <= budget;
  };
  if (target <= trained && fits("full")) {
    plan->strategy = "full";
    plan->reason = "the text is not longer than the trained length";
  } else if (config.positions == PositionKind::kRope && fits("long_heads")) {
    plan->strategy = "long_heads";
    plan->reason = "positions stay inside the trained length and any part of the text can be found";
  } else if (config.positions == PositionKind::kByLayer) {
    plan->strategy = "full";
    plan->reason = "layers have windows of their own, which full attention alone keeps";
  } else if (config.positions == PositionKind::kCocaSlack) {
    plan->strategy = "full";
    plan->reason =
        "slack CoCA needs every token at its own position; with dynamic_ntk, as published";
  } else {
    plan->strategy = "lm_infinite";
    plan->reason =
        config.positions == PositionKind::kRope
            ? "the keys and values of the whole text do not fit into the memory given; "
              "what lies before the window cannot be found"
            : "the model's positions have no published chunk selection; what lies before "
              "the window cannot be found";
  }
}

void Warn(const ModelConfig& config, const PlanRequest& request, ModelPlan* plan) {
  const std::string& name = request.position.name;
  if (name.empty()) return;
  const PositionRequest text = {request.target_tokens, false};
  const auto spec = ResolvePositionSpec(request.position, config.rope, text);
  if (!spec.ok()) {
    plan->warnings.emplace_back(spec.status().message());
    return;
  }
  const double factor = FindPositionScheme(spec->name)->extension(*spec, config.rope);
  const double reach = factor * config.rope.original_length;
  if (static_cast<double>(request.target_tokens) > reach) {
    plan->warnings.push_back(absl::StrCat(name, " reaches ", static_cast<int64_t>(reach),
                                          " tokens, fewer than the ", request.target_tokens,
                                          " wanted"));
  }
  if (FindPositionScheme(spec->name)->tuned) {
    plan->warnings.push_back(absl::StrCat(
        name, " is meant for checkpoints tuned with it; without tuning answers get worse"));
  }
}

}  // namespace

ModelPlan PlanModel(const ModelConfig& config, const PlanRequest& request) {
  const ModelShape& shape = config.shape;
  const RopeModel& rope = config.rope;
  const double length = rope.original_length;
  const auto target = static_cast<double>(request.target_tokens);
  ModelPlan plan;
  plan.rotary_dim = rope.rotary_dim;
  const bool rotary =
      config.positions == PositionKind::kRope || config.positions == PositionKind::kByLayer;
  if (rotary && length > 6.2832) {
    plan.critical_dimension = CriticalDimension(rope.rotary_dim, rope.base, length);
    plan.max_extrapolation =
        MaxExtrapolationLength(rope.rotary_dim, rope.base, length, rope.base, length);
    plan.required_base = RequiredBase(rope.base, length, target);
    plan.required_base_of_dimension =
        RequiredBaseOfCriticalDimension(rope.rotary_dim, rope.base, length, target);
  }
  plan.kv_bytes_per_token = BytesPerToken(shape, request.kv_bits);
  plan.needs = Needs(shape, request.kv_bits, request.target_tokens);
  Recommend(config, request, &plan);
  Warn(config, request, &plan);
  return plan;
}

}  // namespace folio::plan
