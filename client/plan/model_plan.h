// What a model can be expected to do at a length, from its config.json alone. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/types/position.h"

namespace folio::plan {

// Memory of the keys and values of one strategy at one length.
struct KvNeed {
  std::string strategy;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

struct ModelPlan {
  // Elements of a head whose period fits into the trained length; the others never saw a whole
  // turn.
  int critical_dimension = 0;
  int rotary_dim = 0;
  // Longest text that the present base can be tuned for (scaling laws of RoPE, Liu et al. 2024).
  double max_extrapolation = 0;
  // Bases for the target length: the smooth form, and the one of the rounded critical dimension.
  double required_base = 0;
  double required_base_of_dimension = 0;
  int64_t kv_bytes_per_token = 0;
  std::vector<KvNeed> needs;
  std::string strategy;
  std::string reason;
  std::vector<std::string> warnings;
};

struct PlanRequest {
  int64_t target_tokens = 0;
  // Of a number of the cache: 16 for fp16 and bf16, 32 for fp32, 8 and 4 for integers, which have
  // fp32 scales beside them: one per value, and one per channel of the keys of a page.
  int kv_bits = 16;
  // Memory for the cache; 0: not known.
  int64_t kv_budget_bytes = 0;
  // Parameters of a position scheme that is considered; an empty name: none.
  PositionSpec position = {};
};

ModelPlan PlanModel(const ModelConfig& config, const PlanRequest& request);

}  // namespace folio::plan
