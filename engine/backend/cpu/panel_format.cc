#include "engine/backend/cpu/panel_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "engine/backend/cpu/integer_weights.h"
#include "engine/base/half.h"

namespace folio::cpu {
namespace {

using Codec = PanelFormat::Codec;

int64_t ElementBytes(Codec codec) { return codec == Codec::kF32 ? 4 : 2; }

// Byte offset of the weight of `lane` for `input` in a panel of fp32, fp16 or bf16.
int64_t OffsetOf(const PanelFormat& format, int lane, int64_t input) {
  const int64_t pair = input / 2 * format.group_bytes();
  if (format.codec == Codec::kBf16) return pair + (lane * 2 + input % 2) * 2;
  return pair + (input % 2 * kPanel + lane) * ElementBytes(format.codec);
}

float ToFloat(DType dtype, const std::byte* at) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return dtype == DType::kBf16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
}

DType DTypeOf(Codec codec) {
  if (codec == Codec::kF32) return DType::kF32;
  return codec == Codec::kF16 ? DType::kF16 : DType::kBf16;
}

// Of a group of integers: byte offset of the scale of an output, and of its weight for input `i`.
int64_t ScaleOffset(const PanelFormat& format, int lane) {
  return format.group_bytes() - 2 * kPanel + 2 * lane;
}
int64_t IntegerOffset(const PanelFormat& format, int lane, int i) {
  const int quad = format.codec == Codec::kInt8 ? i / 4 : i / 8;
  return (quad * kPanel + lane) * 4 + i % 4;
}
// Of a panel of `inputs`.
int64_t UnitOffset(const PanelFormat& format, int lane, int64_t inputs) {
  return format.num_groups(inputs) * format.group_bytes() + (lane % 16 * 2 + lane / 16) * 2;
}
// Of int4: in which half of its byte.
int ShiftOf(int i) { return i % 8 < 4 ? 0 : 4; }

// As fp32, of dtype `given`.
void Widen(DType given, const std::byte* source, std::span<float> out) {
  if (given == DType::kF32) {
    std::memcpy(out.data(), source, out.size_bytes());
    return;
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(source);
  if (given == DType::kBf16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = Bf16ToFloat(bits[i]);
  } else {
    for (size_t i = 0; i < out.size(); ++i) out[i] = Fp16ToFloat(bits[i]);
  }
}

// Eight integers of int4 as the four bytes that hold them.
uint32_t EightInFourBytes(const int8_t* integers) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t bytes;
  std::memcpy(&bytes, integers, sizeof(bytes));
  // The low four bits of a number and of that number plus eight differ in the highest of them.
  const uint64_t nibbles = (bytes & 0x0f0f0f0f0f0f0f0fu) ^ 0x0808080808080808u;
  return static_cast<uint32_t>(nibbles) | static_cast<uint32_t>(nibbles >> 32) << 4;
}

// The scales of a row's groups, of the given ones those that can be kept.
std::vector<float> ScalesOf(const PanelFormat& format, std::span<const float> weights,
                            const RowScales& given) {
  const bool has_scales = given.scales != nullptr && given.group % format.group == 0;
  const auto inputs = static_cast<int64_t>(weights.size());
  std::vector<float> scales;
  for (int64_t first = 0; first < inputs; first += format.group) {
    const auto count = static_cast<int>(std::min<int64_t>(format.group, inputs - first));
    const float scale = has_scales ? given.scales[first / given.group] : 0;
    scales.push_back(ScaleFor(format.codec, &weights[first], count, scale));
  }
  return scales;
}

void PackIntegers(const PanelFormat& format, DType given, const std::byte* source, int64_t inputs,
                  const RowScales& row_scales, int lane, std::byte* panel) {
  std::vector<float> weights(inputs);
  Widen(given, source, weights);
  const std::vector<float> scales = ScalesOf(format, weights, row_scales);
  const float unit = UnitOf(scales);
  const uint16_t unit_bits = FloatToBf16(unit);
  std::memcpy(panel + UnitOffset(format, lane, inputs), &unit_bits, 2);
  int8_t integers[kMaxWeightGroup];
  for (size_t group = 0; group < scales.size(); ++group) {
    const int64_t first = static_cast<int64_t>(group) * format.group;
    const auto count = static_cast<int>(std::min<int64_t>(format.group, inputs - first));
    const uint16_t bits = ScaleBits(scales[group], unit);
    QuantiseWeights(format.codec, &weights[first], count, Fp16ToFloat(bits) * unit, integers);
    std::fill(integers + count, integers + format.group, int8_t{0});
    std::memcpy(panel + ScaleOffset(format, lane), &bits, 2);
    std::byte* to = panel + IntegerOffset(format, lane, 0);
    const int step = format.codec == Codec::kInt8 ? 4 : 8;
    for (int i = 0; i < format.group; i += step, to += 4 * kPanel) {
      uint32_t word;
      std::memcpy(&word, integers + i, sizeof(word));
      if (format.codec == Codec::kInt4) word = EightInFourBytes(integers + i);
      std::memcpy(to, &word, sizeof(word));
    }
    panel += format.group_bytes();
  }
}

// Pairs of bf16 stay together.
void PackPairs(const PanelFormat& format, const std::byte* source, int64_t inputs, int lane,
               std::byte* panel) {
  std::byte* to = panel + OffsetOf(format, lane, 0);
  for (int64_t pair = 0; pair < inputs / 2; ++pair, to += format.group_bytes()) {
    std::memcpy(to, source + 4 * pair, 4);
  }
  if (inputs % 2 == 1) std::memcpy(to, source + 2 * (inputs - 1), 2);
}

void ReadIntegers(const PanelFormat& format, const std::byte* panel, int lane, int64_t inputs,
                  float* out) {
  uint16_t unit;
  std::memcpy(&unit, panel + UnitOffset(format, lane, inputs), 2);
  for (int64_t input = 0; input < inputs; ++input) {
    const int i = static_cast<int>(input % format.group);
    const std::byte* const group = panel + input / format.group * format.group_bytes();
    const auto byte = static_cast<uint8_t>(group[IntegerOffset(format, lane, i)]);
    const int weight =
        format.codec == Codec::kInt8 ? static_cast<int8_t>(byte) : (byte >> ShiftOf(i) & 15) - 8;
    uint16_t scale;
    std::memcpy(&scale, group + ScaleOffset(format, lane), 2);
    out[input] = static_cast<float>(weight) * (Fp16ToFloat(scale) * Bf16ToFloat(unit));
  }
}

}  // namespace

PanelFormat PanelFormat::Of(DType given, const WeightFormat& format) {
  switch (format.codec) {
    case WeightFormat::Codec::kInt8:
      return {Codec::kInt8, format.group};
    case WeightFormat::Codec::kInt4:
      return {Codec::kInt4, format.group};
    case WeightFormat::Codec::kAsGiven:
      break;
  }
  if (given == DType::kF32) return {Codec::kF32};
  return {given == DType::kF16 ? Codec::kF16 : Codec::kBf16};
}

int64_t PanelFormat::group_bytes() const {
  switch (codec) {
    case Codec::kInt8:
      return int64_t{group} * kPanel + 2 * kPanel;
    case Codec::kInt4:
      return int64_t{group} * kPanel / 2 + 2 * kPanel;
    default:
      return int64_t{group} * kPanel * ElementBytes(codec);
  }
}

void PackPanelRow(const PanelFormat& format, DType given, const std::byte* source, int64_t inputs,
                  const RowScales& scales, int lane, std::byte* panel) {
  const int64_t size = DTypeBytes(given);
  if (format.integers()) return PackIntegers(format, given, source, inputs, scales, lane, panel);
  if (format.codec == Codec::kBf16) return PackPairs(format, source, inputs, lane, panel);
  const int64_t first = OffsetOf(format, lane, 0);
  const int64_t second = OffsetOf(format, lane, 1) - first;
  const int64_t pair_bytes = format.group_bytes();
  for (int64_t i = 0; i < inputs; ++i) {
    std::memcpy(panel + first + i / 2 * pair_bytes + i % 2 * second, source + i * size, size);
  }
}

void ReadPanelRow(const PanelFormat& format, const std::byte* panel, int lane, int64_t inputs,
                  float* out) {
  if (format.integers()) return ReadIntegers(format, panel, lane, inputs, out);
  const DType dtype = DTypeOf(format.codec);
  for (int64_t i = 0; i < inputs; ++i) {
    out[i] = ToFloat(dtype, panel + OffsetOf(format, lane, i));
  }
}

}  // namespace folio::cpu
