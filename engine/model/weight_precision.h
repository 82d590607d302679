#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tensor/tensor_view.h"
#include "engine/tensor/weight_format.h"

namespace folio {

// The numbers in which the weights of a model are kept.
struct WeightPrecision {
  // Of matrices that are not integers; weights of another dtype are converted.
  DType dtype = DType::kBf16;
  // Of the matrices inside the layers, but for routers: they are small, and choose.
  WeightFormat layers;
  // Of an output head of its own. One that is tied is the embedding, which is never integers:
  // a row of it is read per token, so it costs no time.
  WeightFormat head;

  bool integers() const { return layers.codec != WeightFormat::Codec::kAsGiven; }
  // "fp32", "fp16", "bf16", or "int4/32": integers with scales for groups of 32.
  std::string name() const;
  // Bytes of a matrix, but for what a backend adds.
  int64_t MatrixBytes(const WeightFormat& format, int64_t outputs, int64_t inputs) const;
};

// `name` is auto, fp32, bf16, int8 or int4; `group` is 32, 64, 128, or 0: that of `nearest` for its
// codec, else 128 of int8, whose loss hardly grows with it, and 32 of int4. auto: the integers
// `nearest` to the checkpoint's, or where it has none, `given`, its dtype. The head is int8 where
// the layers are integers. Errors: INVALID_ARGUMENT.
absl::StatusOr<WeightPrecision> ParseWeightPrecision(std::string_view name, int group, DType given,
                                                     const WeightFormat& nearest = {});

}  // namespace folio
