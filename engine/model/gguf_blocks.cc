#include "engine/model/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/half.h"

namespace folio {
namespace {

// Numbers of a block: of the simple types, and of those that are called K.
constexpr int kSimple = 32;
constexpr int kSuper = 256;

int Byte(const std::byte* at) { return static_cast<int>(*at); }

int SignedByte(const std::byte* at) { return static_cast<int8_t>(*at); }

float Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return Fp16ToFloat(bits);
}

void DecodeF32(const std::byte* blocks, int64_t count, float* out) {
  std::memcpy(out, blocks, count * sizeof(float));
}

void DecodeF16(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Half(blocks + 2 * i);
}

void DecodeBf16(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, blocks + 2 * i, sizeof(bits));
    out[i] = Bf16ToFloat(bits);
  }
}

// Scale fp16, then 32 integers of 8 bits.
constexpr int kQ8Bytes = 34;
void DecodeQ8(const std::byte* block, int64_t count, float* out) {
  for (; count > 0; --count, block += kQ8Bytes, out += kSimple) {
    const float scale = Half(block);
    for (int i = 0; i < kSimple; ++i)
      out[i] = scale * static_cast<float>(SignedByte(block + 2 + i));
  }
}

// Scale fp16, then 16 bytes: numbers 0..15 in their low halves, 16..31 in the high ones, 8 added.
constexpr int kQ4Bytes = 18;
void DecodeQ4(const std::byte* block, int64_t count, float* out) {
  for (; count > 0; --count, block += kQ4Bytes, out += kSimple) {
    const float scale = Half(block);
    for (int i = 0; i < kSimple / 2; ++i) {
      const int both = Byte(block + 2 + i);
      out[i] = scale * static_cast<float>((both & 15) - 8);
      out[i + kSimple / 2] = scale * static_cast<float>((both >> 4) - 8);
    }
  }
}

// Eight groups of 32 share a scale and a minimum fp16, each with six bits for its part of either:
// of groups 0..3 in bytes 0..3 and 4..7, of groups 4..7 in the halves of bytes 8..11 and in the two
// bits that are left of bytes 0..7.
struct ScaleAndMinimum {
  float scale;
  float minimum;
};
constexpr int kSixBitBytes = 12;
ScaleAndMinimum GroupScale(const std::byte* block, int group) {
  const std::byte* const six_bits = block + 4;
  int scale;
  int minimum;
  if (group < 4) {
    scale = Byte(six_bits + group) & 63;
    minimum = Byte(six_bits + group + 4) & 63;
  } else {
    const int low = Byte(six_bits + group + 4);
    scale = (low & 15) | (Byte(six_bits + group - 4) >> 6 << 4);
    minimum = (low >> 4) | (Byte(six_bits + group) >> 6 << 4);
  }
  return {Half(block) * static_cast<float>(scale), Half(block + 2) * static_cast<float>(minimum)};
}

// The scales, then 32 bytes for each two groups, the even one in the low halves.
constexpr int kQ4KBytes = 4 + kSixBitBytes + kSuper / 2;
void DecodeQ4K(const std::byte* block, int64_t count, float* out) {
  for (; count > 0; --count, block += kQ4KBytes) {
    const std::byte* const halves = block + 4 + kSixBitBytes;
    for (int group = 0; group < 8; ++group, out += 32) {
      const auto [scale, minimum] = GroupScale(block, group);
      for (int i = 0; i < 32; ++i) {
        const int number = Byte(halves + group / 2 * 32 + i) >> group % 2 * 4 & 15;
        out[i] = scale * static_cast<float>(number) - minimum;
      }
    }
  }
}

// As above, and 32 bytes between with the fifth bit: bit g of byte i is that of number i of group
// g.
constexpr int kQ5KBytes = kQ4KBytes + kSuper / 8;
void DecodeQ5K(const std::byte* block, int64_t count, float* out) {
  for (; count > 0; --count, block += kQ5KBytes) {
    const std::byte* const fifth_bits = block + 4 + kSixBitBytes;
    const std::byte* const halves = fifth_bits + kSuper / 8;
    for (int group = 0; group < 8; ++group, out += 32) {
      const auto [scale, minimum] = GroupScale(block, group);
      for (int i = 0; i < 32; ++i) {
        const int low = Byte(halves + group / 2 * 32 + i) >> group % 2 * 4 & 15;
        const int number = low | (Byte(fifth_bits + i) >> group & 1) << 4;
        out[i] = scale * static_cast<float>(number) - minimum;
      }
    }
  }
}

// Two halves of 128 numbers, each four runs of 32. Low four bits: runs 0 and 1 in the low halves of
// 64 bytes, 2 and 3 in the high ones; upper two bits: run r at bit 2 r of 32 bytes; then a scale of
// 8 bits for every 16 numbers, and one fp16 for all. 32 is added.
constexpr int kQ6KBytes = kSuper / 2 + kSuper / 4 + kSuper / 16 + 2;
void DecodeQ6K(const std::byte* block, int64_t count, float* out) {
  for (; count > 0; --count, block += kQ6KBytes) {
    const std::byte* const upper_bits = block + kSuper / 2;
    const std::byte* const scales = upper_bits + kSuper / 4;
    const float all = Half(scales + kSuper / 16);
    for (int run = 0; run < 8; ++run, out += 32) {
      const int half = run / 4;
      for (int i = 0; i < 32; ++i) {
        const int low = Byte(block + half * 64 + run % 2 * 32 + i) >> run % 4 / 2 * 4 & 15;
        const int upper = Byte(upper_bits + half * 32 + i) >> run % 4 * 2 & 3;
        const float scale = all * static_cast<float>(SignedByte(scales + run * 2 + i / 16));
        out[i] = scale * static_cast<float>((low | upper << 4) - 32);
      }
    }
  }
}

using Codec = WeightFormat::Codec;
constexpr WeightFormat kInt4 = {Codec::kInt4, 32};
constexpr WeightFormat kInt8 = {Codec::kInt8, 32};

constexpr std::array<GgufType, 8> kTypes = {{
    {0, "F32", 1, 4, DecodeF32, {}},
    {1, "F16", 1, 2, DecodeF16, {}},
    {30, "BF16", 1, 2, DecodeBf16, {}},
    {8, "Q8_0", kSimple, kQ8Bytes, DecodeQ8, kInt8, true},
    {2, "Q4_0", kSimple, kQ4Bytes, DecodeQ4, kInt4, true},
    {12, "Q4_K", kSuper, kQ4KBytes, DecodeQ4K, kInt4},
    {13, "Q5_K", kSuper, kQ5KBytes, DecodeQ5K, kInt8},
    {14, "Q6_K", kSuper, kQ6KBytes, DecodeQ6K, kInt8},
}};

constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {3, "Q4_1"},   {6, "Q5_0"},     {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},
    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},   {26, "I32"},
    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

}  // namespace

const GgufType* FindGgufType(uint32_t id) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [id](const GgufType& type) { return type.id == id; });
  return found == kTypes.end() ? nullptr : found;
}

float GgufScale(const std::byte* block) { return Half(block); }

std::string GgufTypeName(uint32_t id) {
  if (const GgufType* type = FindGgufType(id); type != nullptr) return type->name;
  for (const auto& [other, name] : kOtherTypes) {
    if (other == id) return name;
  }
  return absl::StrCat("type ", id);
}

std::string KnownGgufTypes() {
  return absl::StrJoin(kTypes, ", ",
                       [](std::string* out, const GgufType& type) { out->append(type.name); });
}

}  // namespace folio
