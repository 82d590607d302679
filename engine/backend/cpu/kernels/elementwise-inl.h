// Row-wise kernels of small cost.
#pragma once

#include <cmath>

#include "engine/backend/cpu/kernels/exp-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

void AddSoftmax(float* values, float scale, int n, float* out) {
  const int whole = n / 16 * 16;
  Vec most = Splat(values[0]);
  for (int i = 0; i < whole; i += 16) most = Max(most, Load(values + i));
  float max = HorizontalMax(most);
  for (int i = whole; i < n; ++i) max = values[i] > max ? values[i] : max;
  Vec sums = Zero();
  for (int i = 0; i < whole; i += 16) {
    const Vec weights = Exp((Load(values + i) - Splat(max)) * Splat(scale));
    Store(values + i, weights);
    sums = sums + weights;
  }
  float sum = HorizontalSum(sums);
  for (int i = whole; i < n; ++i) {
    values[i] = Exp((values[i] - max) * scale);
    sum += values[i];
  }
  const float share = 1 / sum;
  for (int i = 0; i < whole; i += 16) Store(out + i, Fma(Load(values + i), share, Load(out + i)));
  for (int i = whole; i < n; ++i) out[i] += values[i] * share;
}

void RmsNorm(const float* x, const float* weight, double eps, int n, float* out) {
  Vec squares = Zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const Vec v = Load(x + i);
    squares = Fma(v, v, squares);
  }
  float sum = HorizontalSum(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + static_cast<float>(eps));
  for (i = 0; i + 16 <= n; i += 16) Store(out + i, Load(x + i) * Splat(scale) * Load(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void SwiGlu(const float* gate, const float* up, int n, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const Vec g = Load(gate + i);
    Store(out + i, g / (Splat(1.0f) + Exp(Zero() - g)) * Load(up + i));
  }
  for (; i < n; ++i) out[i] = gate[i] / (1.0f + Exp(-gate[i])) * up[i];
}

// Both halves are read before one is written, which a compiler that knows them to be apart would
// not do: where x and out lie at the same offset of a system page, AMD's processors take a read
// behind the write for one of the same address and wait.
void RotateRows(const float* x, int num_rows, int64_t row_floats, const float* cos,
                const float* sin, float sin_sign, int half, float* out) {
  int m = 0;
  for (; m + 16 <= half; m += 16) {
    const Vec c = Load(cos + m), s = Load(sin + m) * Splat(sin_sign);
    for (int64_t at = m; at < num_rows * row_floats; at += row_floats) {
      const Vec left = Load(x + at), right = Load(x + at + half);
      const Vec turned_left = left * c - right * s, turned_right = right * c + left * s;
      Store(out + at, turned_left);
      Store(out + at + half, turned_right);
    }
  }
  for (; m < half; ++m) {
    const float c = cos[m], s = sin_sign * sin[m];
    for (int64_t at = m; at < num_rows * row_floats; at += row_floats) {
      out[at] = x[at] * c - x[at + half] * s;
      out[at + half] = x[at + half] * c + x[at] * s;
    }
  }
}

void Rotate(const float* x, const float* cos, const float* sin, float sin_sign, int half,
            float* out) {
  RotateRows(x, 1, 2 * half, cos, sin, sin_sign, half, out);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
