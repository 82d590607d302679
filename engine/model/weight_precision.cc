#include "engine/model/weight_precision.h"

#include "absl/strings/str_cat.h"

namespace folio {

using Codec = WeightFormat::Codec;

std::string WeightPrecision::name() const {
  if (!integers()) return DTypeName(dtype);
  return absl::StrCat(layers.codec == Codec::kInt8 ? "int8" : "int4", "/", layers.group);
}

int64_t WeightPrecision::MatrixBytes(const WeightFormat& format, int64_t outputs,
                                     int64_t inputs) const {
  if (format.codec == Codec::kAsGiven) return outputs * inputs * DTypeBytes(dtype);
  const int64_t groups = (inputs + format.group - 1) / format.group;
  const int64_t group_bytes = format.codec == Codec::kInt8 ? format.group : format.group / 2;
  constexpr int64_t kScaleBytes = 2;
  return outputs * (groups * (group_bytes + kScaleBytes) + kScaleBytes);
}

absl::StatusOr<WeightPrecision> ParseWeightPrecision(std::string_view name, int group, DType given,
                                                     const WeightFormat& nearest) {
  if (group != 0 && group != 32 && group != 64 && group != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_group is ", group, ", must be 32, 64 or 128"));
  }
  WeightPrecision precision;
  precision.dtype = given;
  if (name == "auto") {
    if (nearest.codec == Codec::kAsGiven) return precision;
    name = nearest.codec == Codec::kInt8 ? "int8" : "int4";
  }
  if (name == "fp32" || name == "bf16") {
    precision.dtype = name == "fp32" ? DType::kF32 : DType::kBf16;
    return precision;
  }
  if (name != "int8" && name != "int4") {
    return absl::InvalidArgumentError(absl::StrCat("weight_dtype is '", std::string(name),
                                                   "', must be auto, fp32, bf16, int8 or int4"));
  }
  const Codec codec = name == "int8" ? Codec::kInt8 : Codec::kInt4;
  if (group == 0 && codec == nearest.codec) group = nearest.group;
  if (group == 0) group = codec == Codec::kInt8 ? 128 : 32;
  precision.layers = {codec, group};
  precision.head = {Codec::kInt8, group};
  return precision;
}

}  // namespace folio
