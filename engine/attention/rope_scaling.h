#pragma once

#include "engine/types/position.h"
#include "engine/types/rotary.h"

namespace folio {

// The published ways to scale rotary positions, one function each. theta_m = base^(-2m/d) is the
// unscaled frequency, d the rotary dimension, s the factor, L the length of the pre-training.
// Frequencies are rounded to fp32 once, at the end.

// theta_m / s. Source: Chen et al. 2023 (position interpolation).
Rotary LinearRotary(const RopeModel& model, double factor);

// Base b * s^(d / (d - 2)). Source: "NTK-aware scaled RoPE" (bloc97, 2023).
Rotary NtkRotary(const RopeModel& model, double factor);

// Base `base`. Source: Xiong et al. 2023 (adjusted base frequency).
Rotary BaseRotary(const RopeModel& model, double base);

// Interpolates the pairs that turn less than `beta_slow` times in L tokens, keeps those that turn
// more than `beta_fast` times, with a ramp over the index in between. attention_factor multiplies
// queries and keys. Source: Peng et al. 2023 (YaRN), in the form of the released code.
struct YarnParams {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double original_length = 0;
  double attention_factor = 1;
};
Rotary YarnRotary(const RopeModel& model, const YarnParams& params);

// 0.1 ln s + 1, or 1 for s <= 1: what YaRN multiplies queries and keys with.
double YarnAttentionFactor(double factor);

// Divides the pairs whose wavelength exceeds L / low_freq_factor by s, keeps those below
// L / high_freq_factor and blends in between. Source: Llama 3.1.
struct Llama3Params {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_length = 8192;
};
Rotary Llama3Rotary(const RopeModel& model, const Llama3Params& params);

// theta_m / f_m with the checkpoint's long or short list; attention_factor multiplies queries and
// keys. Source: Ding et al. 2024 (LongRoPE), in the form of Phi-3.
Rotary LongRopeRotary(const RopeModel& model, bool use_long, double attention_factor);

}  // namespace folio
