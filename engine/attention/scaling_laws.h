#pragma once

#include <cstdint>

namespace folio {

// Scaling laws of RoPE extrapolation. Source: Liu et al. 2024, "Scaling Laws of RoPE-based
// Extrapolation". Derived for models tuned after the change of base; without tuning they bound what
// can be expected.

// Dimensions of a head whose period fits into the trained length:
// 2 ceil(d/2 * log_base(length / 2 pi)), at most `rotary_dim`.
int CriticalDimension(int rotary_dim, double base, double trained_length);

// Base that makes a model of `base` and `trained_length` reach `length`: the smooth form
// base^(ln(T / 2 pi) / ln(L / 2 pi)), and the form consistent with the rounded critical dimension.
double RequiredBase(double base, double trained_length, double length);
double RequiredBaseOfCriticalDimension(int rotary_dim, double base, double trained_length,
                                       double length);

// Longest text after moving a model of `base` and `trained_length` to `new_base` and tuning it at
// `tuned_length`: 2 pi new_base^(d_x / d), at least tuned_length.
double MaxExtrapolationLength(int rotary_dim, double base, double trained_length, double new_base,
                              double tuned_length);

}  // namespace folio
