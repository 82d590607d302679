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
  // A picked key is read for one query and head, no other one's; a candidate has no value.
  const KeyCounts keys = CountKeys(plan, position);
  const double half_keys =
      static_cast<double>(2 * keys.visible + 2 * keys.picked + keys.candidates);
  return 1 + attended * half_keys / 2;
}

// Exact where the cost grows evenly; what it grows by changes where a text becomes too long to be
// seen whole, so a long one is taken in some pieces.
double WorkCosts::OfPrompt(const AttentionPlan& plan, int64_t begin, int64_t end) const {
  constexpr int64_t kPieces = 4;
  double work = 0;
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const int64_t from = begin + (end - begin) * piece / kPieces;
    const int64_t to = begin + (end - begin) * (piece + 1) / kPieces;
    if (from >= to) continue;
    const double of_two = OfPromptToken(plan, from + (to - from - 1) / 2) +
                          OfPromptToken(plan, from + (to - from) / 2);
    work += static_cast<double>(to - from) * of_two / 2;
  }
  return work;
}

double WorkCosts::OfAnswer(const AttentionPlan& plan, int64_t position, int64_t num_answers) const {
  return weights / static_cast<double>(std::max<int64_t>(1, num_answers)) +
         OfAnswerBeside(plan, position);
}

double WorkCosts::OfAnswerBeside(const AttentionPlan& plan, int64_t position) const {
  return attended_by_answer * static_cast<double>(NumVisibleKeys(plan, position));
}

}  // namespace folio
