#include "engine/sched/work_costs.h"

#include <algorithm>

#include "engine/attention/visible_keys.h"

namespace folio {

WorkCosts WorkCosts::Of(const ModelShape& shape, int64_t weight_bytes, int64_t kv_bytes_per_token) {
  const double hidden = shape.hidden_size;
  const double queries = static_cast<double>(shape.num_heads) * shape.head_dim;
  const double keys = static_cast<double>(shape.num_kv_heads) * shape.head_dim;
  const double mlps = std::max(1, shape.experts_per_token);
  // Multiplications for a token, of one layer: in the products, and with a key and a value.
  const double products = hidden * (2 * queries + 2 * keys + 3 * mlps * shape.intermediate_size);
  WorkCosts costs;
  if (products > 0) costs.attended = 2 * queries / products;
  if (weight_bytes > 0) {
    costs.attended_by_answer =
        costs.weights * static_cast<double>(kv_bytes_per_token) / static_cast<double>(weight_bytes);
  }
  return costs;
}

double WorkCosts::OfPromptToken(const AttentionPlan& plan, int64_t position) const {
  return 1 + attended * static_cast<double>(NumVisibleKeys(plan, position));
}

// What a query sees grows evenly, or not at all.
double WorkCosts::OfPrompt(const AttentionPlan& plan, int64_t begin, int64_t end) const {
  if (begin >= end) return 0;
  return static_cast<double>(end - begin) * OfPromptToken(plan, begin + (end - begin) / 2);
}

double WorkCosts::OfAnswer(const AttentionPlan& plan, int64_t position, int64_t num_answers) const {
  return weights / static_cast<double>(std::max<int64_t>(1, num_answers)) +
         OfAnswerBeside(plan, position);
}

double WorkCosts::OfAnswerBeside(const AttentionPlan& plan, int64_t position) const {
  return attended_by_answer * static_cast<double>(NumVisibleKeys(plan, position));
}

}  // namespace folio
