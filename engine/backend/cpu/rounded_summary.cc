#include "engine/backend/cpu/rounded_summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace folio::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A vector as scale * integers; of one that is not finite all zeros, and the error infinite.
struct Rounded {
  explicit Rounded(std::span<const float> values) {
    float most = 0;
    bool finite = true;
    for (const float value : values) {
      most = std::max(most, std::abs(value));
      finite = finite && std::isfinite(value);
    }
    if (!finite) {
      error = norm = kInfinity;
      return;
    }
    if (most > 1e-30f) {
      scale = most / 127.0f;
      inverse = 127.0f / most;
    }
    double squares = 0;
    double rounded_squares = 0;
    double error_squares = 0;
    for (const float value : values) {
      const double back = double{scale} * Integer(value);
      squares += double{value} * value;
      rounded_squares += back * back;
      error_squares += (value - back) * (value - back);
    }
    norm = RootUp(squares);
    rounded_norm = RootUp(rounded_squares);
    error = RootUp(error_squares);
  }
  int Integer(float value) const {
    return inverse == 0 ? 0 : static_cast<int>(std::nearbyint(value * inverse));
  }

  float scale = 0;
  float inverse = 0;
  float norm = 0;
  float rounded_norm = 0;
  float error = 0;

 private:
  static float RootUp(double square) {
    return std::nextafter(static_cast<float>(std::sqrt(square)), kInfinity);
  }
};

uint32_t Byte(int integer) { return static_cast<uint32_t>(integer) & 0xffu; }

}  // namespace

void RoundSummary(std::span<const float> summary, int lane, std::byte* tile) {
  const size_t dim = summary.size();
  if (lane == 0) std::fill_n(tile, kTile * (dim + 3 * sizeof(float)), std::byte{0});
  const Rounded rounded(summary);
  for (size_t d = 0; d < dim; ++d) {
    tile[(d / 4 * kTile + lane) * 4 + d % 4] =
        static_cast<std::byte>(Byte(rounded.Integer(summary[d])));
  }
  const float facts[] = {rounded.scale, rounded.rounded_norm, rounded.error};
  std::byte* at = tile + kTile * dim + lane * sizeof(float);
  for (const float fact : facts) {
    std::memcpy(at, &fact, sizeof(fact));
    at += kTile * sizeof(float);
  }
}

void RoundSummaryFrame(const KvGeometry& g, std::byte* frame) {
  std::vector<float> summary(g.padded_dim);
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int head = 0; head < g.num_heads; ++head) {
      const auto* tile = reinterpret_cast<const float*>(frame + g.summary_offset(layer, head));
      for (int lane = 0; lane < kTile; ++lane) {
        for (int d = 0; d < g.padded_dim; ++d) summary[d] = tile[d * kTile + lane];
        RoundSummary(summary, lane, frame + g.rounded_offset(layer, head));
      }
    }
  }
}

void RoundedQuery::Set(std::span<const float> query, int num_terms) {
  const Rounded rounded(query);
  words.fill(0);
  sum = 0;
  for (size_t d = 0; d < query.size(); ++d) {
    const int integer = rounded.Integer(query[d]);
    words[d / 4] |= Byte(integer) << (8 * (d % 4));
    sum += integer;
  }
  scale = rounded.scale;
  norm = rounded.norm;
  error = rounded.error;
  // Each product, each sum of a term and each sum of terms rounds once, by half of 2^-23.
  slack = static_cast<float>(query.size() + 4 * static_cast<size_t>(num_terms) + 32) * 0x1p-23f;
}

}  // namespace folio::cpu
