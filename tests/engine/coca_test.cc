// CoCA against the values worked out by hand (d = 2, theta = 1, q = (1, 2), T = (3, 3), no
// scaling).
#include "engine/backend/cpu/coca.h"

#include <array>
#include <cmath>

#include "engine/types/kv_types.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using Pair = std::array<float, 2>;

constexpr Pair kQuery = {1, 2};
constexpr Pair kT = {3, 3};

Pair Turn(const Pair& x, double position) {
  const auto c = static_cast<float>(std::cos(position));
  const auto s = static_cast<float>(std::sin(position));
  return {x[0] * c - x[1] * s, x[1] * c + x[0] * s};
}

Pair Key(double position) {
  float u;
  CocaKey(kT.data(), 1, &u);
  return Turn({u, u}, position);
}

float Dot(const Pair& a, const Pair& b) { return a[0] * b[0] + a[1] * b[1]; }

float Strict(CocaQuery form, double m, double n) {
  Pair q;
  CocaStrictQuery(form, kQuery.data(), 1, q.data());
  return Dot(Turn(q, m), Key(n));
}

float Slack(const Pair& query, double m, double n) {
  Pair q;
  CocaSlackQuery(query.data(), Turn(query, m).data(), 1, q.data());
  return Dot(q, Key(n));
}

TEST(Coca, StrictFollowsEquation17) {
  EXPECT_NEAR(Strict(CocaQuery::kNorm, 1, 0), 15 * std::cos(1.0), 1e-5);  // 8.104535
  EXPECT_NEAR(Strict(CocaQuery::kNorm, 1, 1), 15, 1e-5);
  EXPECT_NEAR(Strict(CocaQuery::kNorm, 107, 106), Strict(CocaQuery::kNorm, 1, 0), 1e-4);
}

TEST(Coca, SlackIsNotAFunctionOfTheDistance) {
  EXPECT_NEAR(Slack(kQuery, 0, 0), 15, 1e-5);
  EXPECT_NEAR(Slack(kQuery, 1, 0), 8.104535, 1e-5);
  EXPECT_NEAR(Slack(kQuery, 1, 1), 16.967618, 1e-5);
}

TEST(Coca, SlackOfATiedQueryIsStrict) {
  const auto norm = static_cast<float>(std::sqrt(2.5));
  for (const auto& [m, n] : {std::pair{1, 1}, {1, 0}, {5, 2}, {9, 0}}) {
    EXPECT_NEAR(Slack({norm, norm}, m, n), Strict(CocaQuery::kNorm, m, n), 1e-5);
    EXPECT_NEAR(Slack({1.5, 1.5}, m, n), Strict(CocaQuery::kMean, m, n), 1e-5);
  }
}

TEST(Coca, KeysAreNeverNegative) {
  const std::array<float, 4> t = {1, 2, -3, 4};
  std::array<float, 2> u;
  CocaKey(t.data(), 2, u.data());
  EXPECT_EQ(u[0], 0);
  EXPECT_EQ(u[1], 3);
}

TEST(Coca, TheCacheTakesThreeQuartersOfTheRoom) {
  ModelShape shape{.num_layers = 2, .num_heads = 4, .num_kv_heads = 4, .head_dim = 64};
  const int64_t ordinary = KvGeometry::Make(shape, 64, DType::kBf16).frame_bytes();
  shape.paired_keys = true;
  EXPECT_EQ(4 * KvGeometry::Make(shape, 64, DType::kBf16).frame_bytes(), 3 * ordinary);
}

}  // namespace
}  // namespace folio
