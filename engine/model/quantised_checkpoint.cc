#include "engine/model/quantised_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/half.h"
#include "engine/base/status_macros.h"
#include "engine/model/family.h"
#include "engine/model/fp8_linear.h"
#include "engine/model/int4_linear.h"
#include "engine/model/model_tensors.h"
#include "engine/tensor/finite.h"

namespace folio {
namespace {

using Codec = WeightFormat::Codec;
using Method = QuantizationConfig::Method;
using Shape = std::vector<int64_t>;

constexpr std::string_view kWeight = ".weight";

int64_t RoundedUp(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; "" of other tensors.
std::string BaseOf(const std::string& name) {
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : "";
}

TensorView MatrixOf(std::span<const int64_t> shape) {
  TensorView view;
  view.dtype = DType::kF32;
  view.rank = 2;
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  return view;
}

std::vector<float> AsFloats(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  const auto* halves = static_cast<const uint16_t*>(view.data);
  for (size_t i = 0; i < values.size(); ++i) {
    if (view.dtype == DType::kF32) values[i] = static_cast<const float*>(view.data)[i];
    if (view.dtype == DType::kF16) values[i] = Fp16ToFloat(halves[i]);
    if (view.dtype == DType::kBf16) values[i] = Bf16ToFloat(halves[i]);
  }
  return values;
}

// Whether a matrix is made integers with the others of its layer: all are but routers of experts.
bool BecomesIntegers(const ModelConfig& config, const std::string& name) {
  const TensorNames& names = FindFamily(config.architecture)->tensors;
  return name.starts_with(names.layers) &&
         (names.router == nullptr || !BaseOf(name).ends_with(names.router));
}

absl::Status CheckStored(const Checkpoint::Stored& stored, const std::string& name,
                         std::initializer_list<const char*> dtypes,
                         std::initializer_list<Shape> shapes) {
  const auto& [dtype, shape, begin, end] = *stored.entry;
  const bool known = std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  const bool fits = std::find(shapes.begin(), shapes.end(), shape) != shapes.end();
  if (known && fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(stored.file->path(), ": tensor \"", name, "\" is ", dtype, " [",
                   absl::StrJoin(shape, ", "), "], config.json asks for ",
                   absl::StrJoin(dtypes, " or "), " [", absl::StrJoin(*shapes.begin(), ", "), "]"));
}

}  // namespace

bool QuantisedCheckpoint::IsQuantised(const std::string& name) const {
  if (quantization_.method != Method::kFp8) {
    const std::string base = BaseOf(name);
    return !base.empty() && checkpoint_.Contains(base + ".qweight");
  }
  const auto stored = checkpoint_.Find(name);
  return stored.ok() && stored->entry->dtype == "F8_E4M3";
}

int64_t QuantisedCheckpoint::Groups(int64_t inputs) const {
  return quantization_.group == 0 ? 1 : RoundedUp(inputs, quantization_.group);
}

absl::Status QuantisedCheckpoint::CheckInt4(const std::string& base, int64_t outputs,
                                            int64_t inputs) const {
  if (outputs % 8 != 0 || inputs % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", base, ".qweight\" cannot hold ", outputs,
                                                   " x ", inputs,
                                                   " numbers, both must be multiples of 8"));
  }
  const int64_t groups = Groups(inputs);
  const bool gptq = quantization_.method == Method::kGptq;
  const Shape words = gptq ? Shape{inputs / 8, outputs} : Shape{inputs, outputs / 8};
  FOLIO_ASSIGN_OR_RETURN(const auto integers, checkpoint_.Find(base + ".qweight"));
  FOLIO_RETURN_IF_ERROR(CheckStored(integers, base + ".qweight", {"I32"}, {words}));
  FOLIO_ASSIGN_OR_RETURN(const auto zeros, checkpoint_.Find(base + ".qzeros"));
  FOLIO_RETURN_IF_ERROR(CheckStored(zeros, base + ".qzeros", {"I32"}, {{groups, outputs / 8}}));
  FOLIO_ASSIGN_OR_RETURN(const auto scales, checkpoint_.Find(base + ".scales"));
  FOLIO_RETURN_IF_ERROR(
      CheckStored(scales, base + ".scales", {"F16", "BF16", "F32"}, {{groups, outputs}}));
  if (!gptq || !checkpoint_.Contains(base + ".g_idx")) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const auto group, checkpoint_.Find(base + ".g_idx"));
  return CheckStored(group, base + ".g_idx", {"I32"}, {{inputs}});
}

std::string QuantisedCheckpoint::Place(const std::string& name) const {
  const auto stored = checkpoint_.Find(name);
  return absl::StrCat(stored.ok() ? stored->file->path() + ": " : "", "tensor \"", name, "\"");
}

// The name of the scales of an fp8 matrix.
std::string QuantisedCheckpoint::Fp8Scales(const std::string& base) const {
  const std::string inverse = base + ".weight_scale_inv";
  return checkpoint_.Contains(inverse) ? inverse : base + ".weight_scale";
}

absl::Status QuantisedCheckpoint::CheckFp8(const std::string& base, int64_t outputs,
                                           int64_t inputs) const {
  FOLIO_ASSIGN_OR_RETURN(const auto floats, checkpoint_.Find(base + ".weight"));
  FOLIO_RETURN_IF_ERROR(CheckStored(floats, base + ".weight", {"F8_E4M3"}, {{outputs, inputs}}));
  const std::string name = Fp8Scales(base);
  FOLIO_ASSIGN_OR_RETURN(const auto scales, checkpoint_.Find(name));
  const std::initializer_list<const char*> dtypes = {"F32", "BF16", "F16"};
  if (quantization_.block_rows > 0) {
    return CheckStored(scales, name, dtypes,
                       {{RoundedUp(outputs, quantization_.block_rows),
                         RoundedUp(inputs, quantization_.block_columns)}});
  }
  return CheckStored(scales, name, dtypes, {{outputs, 1}, {outputs}, {1}, {}});
}

absl::Status QuantisedCheckpoint::CheckParts(const std::string& name,
                                             std::span<const int64_t> shape) const {
  if (!IsQuantised(name) || shape.size() != 2) return checkpoint_.Describe(name, shape).status();
  if (quantization_.method == Method::kFp8) return CheckFp8(BaseOf(name), shape[0], shape[1]);
  return CheckInt4(BaseOf(name), shape[0], shape[1]);
}

absl::StatusOr<std::vector<uint32_t>> QuantisedCheckpoint::Words(const std::string& name) const {
  FOLIO_ASSIGN_OR_RETURN(const auto stored, checkpoint_.Find(name));
  std::vector<uint32_t> words((stored.entry->end - stored.entry->begin) / sizeof(uint32_t));
  FOLIO_RETURN_IF_ERROR(
      stored.file->ReadBytes(*stored.entry, 0, std::as_writable_bytes(std::span(words))));
  return words;
}

absl::StatusOr<std::vector<float>> QuantisedCheckpoint::Floats(const std::string& name) const {
  FOLIO_ASSIGN_OR_RETURN(const auto stored, checkpoint_.Find(name));
  FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor, stored.file->Tensor(name));
  return AsFloats(tensor.view);
}

absl::StatusOr<std::vector<int32_t>> QuantisedCheckpoint::GroupOfInputs(const std::string& base,
                                                                        int64_t inputs) const {
  const int64_t size = quantization_.group == 0 ? inputs : quantization_.group;
  std::vector<int32_t> group(inputs);
  for (int64_t i = 0; i < inputs; ++i) group[i] = static_cast<int32_t>(i / size);
  const std::string name = base + ".g_idx";
  if (quantization_.method != Method::kGptq || !checkpoint_.Contains(name)) return group;
  FOLIO_ASSIGN_OR_RETURN(const std::vector<uint32_t> words, Words(name));
  const int64_t groups = Groups(inputs);
  for (int64_t i = 0; i < inputs; ++i) {
    if (words[i] >= groups) {
      return absl::InvalidArgumentError(
          absl::StrCat(Place(name), " puts input ", i, " into group ", words[i], " of ", groups));
    }
    group[i] = static_cast<int32_t>(words[i]);
  }
  return group;
}

int64_t QuantisedCheckpoint::ScaleGroup(int64_t inputs) const {
  return quantization_.group == 0 ? RoundedUp(inputs, 128) * 128 : quantization_.group;
}

absl::StatusOr<bool> QuantisedCheckpoint::IsIntegersTimesScales(const std::string& base,
                                                                int64_t inputs) const {
  FOLIO_ASSIGN_OR_RETURN(const std::vector<uint32_t> zeros, Words(base + ".qzeros"));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> group, GroupOfInputs(base, inputs));
  const int64_t size = ScaleGroup(inputs);
  bool neighbours = true;
  for (int64_t i = 0; i < inputs; ++i) neighbours &= group[i] == i / size;
  return neighbours && AreEights(zeros, quantization_.zeros_below);
}

absl::StatusOr<OwnedTensor> QuantisedCheckpoint::ReadInt4(const std::string& base,
                                                          const TensorView& shape) const {
  FOLIO_ASSIGN_OR_RETURN(const std::vector<uint32_t> integers, Words(base + ".qweight"));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<uint32_t> zeros, Words(base + ".qzeros"));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<float> scales, Floats(base + ".scales"));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> group, GroupOfInputs(base, shape.shape[1]));
  const Int4Linear linear = {
      .order = quantization_.method == Method::kGptq ? Int4Linear::Order::kGptq
                                                     : Int4Linear::Order::kAwq,
      .outputs = shape.shape[0],
      .inputs = shape.shape[1],
      .integers = integers,
      .zeros = zeros,
      .zeros_below = quantization_.zeros_below,
      .scales = scales,
      .group = group,
  };
  OwnedTensor tensor = OwnedTensor::Like(shape);
  Dequantise(linear, reinterpret_cast<float*>(tensor.data.get()));
  FOLIO_ASSIGN_OR_RETURN(const bool has_scales, IsIntegersTimesScales(base, linear.inputs));
  if (!has_scales) return tensor;
  // By output, as a row of the tensor is one.
  const int64_t groups = Groups(linear.inputs);
  std::vector<float> of_rows;
  for (int64_t output = 0; output < linear.outputs; ++output) {
    for (int64_t g = 0; g < groups; ++g) of_rows.push_back(scales[g * linear.outputs + output]);
  }
  tensor.SetScales(std::move(of_rows), static_cast<int>(ScaleGroup(linear.inputs)));
  return tensor;
}

absl::StatusOr<OwnedTensor> QuantisedCheckpoint::ReadFp8(const std::string& base,
                                                         const TensorView& shape) const {
  FOLIO_ASSIGN_OR_RETURN(const auto stored, checkpoint_.Find(base + ".weight"));
  std::vector<std::byte> floats(stored.entry->end - stored.entry->begin);
  FOLIO_RETURN_IF_ERROR(stored.file->ReadBytes(*stored.entry, 0, floats));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<float> scales, Floats(Fp8Scales(base)));
  Fp8Linear linear = {.outputs = shape.shape[0],
                      .inputs = shape.shape[1],
                      .floats = floats,
                      .block_rows = quantization_.block_rows,
                      .block_columns = quantization_.block_columns,
                      .scales = scales};
  if (quantization_.block_rows == 0) {
    linear.block_rows = scales.size() == 1 ? linear.outputs : 1;
    linear.block_columns = linear.inputs;
  }
  OwnedTensor tensor = OwnedTensor::Like(shape);
  Dequantise(linear, reinterpret_cast<float*>(tensor.data.get()));
  return tensor;
}

absl::StatusOr<OwnedTensor> QuantisedCheckpoint::Tensor(
    const std::string& name, std::span<const int64_t> expected_shape) const {
  if (expected_shape.size() != 2) return checkpoint_.Tensor(name, expected_shape);
  const TensorView shape = MatrixOf(expected_shape);
  if (!IsQuantised(name)) {
    FOLIO_ASSIGN_OR_RETURN(const OwnedTensor given, checkpoint_.Tensor(name, expected_shape));
    OwnedTensor tensor = OwnedTensor::Like(shape);
    const std::vector<float> values = AsFloats(given.view);
    std::memcpy(tensor.data.get(), values.data(), values.size() * sizeof(float));
    return tensor;
  }
  FOLIO_RETURN_IF_ERROR(CheckParts(name, expected_shape));
  const bool is_fp8 = quantization_.method == Method::kFp8;
  FOLIO_ASSIGN_OR_RETURN(OwnedTensor tensor,
                         is_fp8 ? ReadFp8(BaseOf(name), shape) : ReadInt4(BaseOf(name), shape));
  const int64_t bad = FirstNonFinite(tensor.view);
  if (bad < 0) return tensor;
  return absl::DataLossError(absl::StrCat(
      Place(is_fp8 ? name : BaseOf(name) + ".qweight"), ": number ", bad, " of ",
      tensor.view.num_elements(), " is infinite or NaN; the file is damaged, take another copy"));
}

absl::StatusOr<CheckpointNumbers> QuantisedCheckpoint::CheckAllTensors(
    const ModelConfig& config) const {
  const bool is_fp8 = quantization_.method == Method::kFp8;
  const int group = quantization_.group;
  int num_quantised = 0;
  bool fp16_scales = true;
  bool are_kept = !is_fp8 && (group == 0 || group % 32 == 0);
  for (const TensorSpec& spec : ModelTensors(config)) {
    FOLIO_RETURN_IF_ERROR(CheckParts(spec.name, spec.shape));
    if (!IsQuantised(spec.name)) {
      are_kept &= spec.shape.size() != 2 || !BecomesIntegers(config, spec.name);
      continue;
    }
    ++num_quantised;
    const auto scales = checkpoint_.Find(BaseOf(spec.name) + ".scales");
    fp16_scales &= scales.ok() && scales->entry->dtype == "F16";
    if (!are_kept) continue;
    FOLIO_ASSIGN_OR_RETURN(are_kept, IsIntegersTimesScales(BaseOf(spec.name), spec.shape[1]));
  }
  if (num_quantised == 0) {
    return absl::InvalidArgumentError(
        "config.json has a \"quantization_config\", but no tensor of the checkpoint is quantised; "
        "take it out");
  }
  CheckpointNumbers numbers;
  if (is_fp8) {
    numbers.nearest = {Codec::kInt8, 128};
    numbers.name = absl::StrCat("fp8 (", num_quantised, " matrices)");
    return numbers;
  }
  const char* const method = quantization_.method == Method::kGptq ? "GPTQ" : "AWQ";
  numbers.name = absl::StrCat(method, " int4 (", num_quantised, " matrices)");
  numbers.nearest = {Codec::kInt4, 32};
  if (!are_kept) return numbers;
  for (const int size : {64, 128}) {
    if (group % size == 0) numbers.nearest.group = size;
  }
  numbers.scale_group = group == 0 ? 128 : group;
  numbers.fp16_scales = fp16_scales;
  return numbers;
}

}  // namespace folio
