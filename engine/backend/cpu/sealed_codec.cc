#include "engine/backend/cpu/sealed_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/base/half.h"

namespace folio {
namespace {

// Numbers of one line: of keys 16 tokens of two dims, of values 16 dims of two tokens.
constexpr int kLine = 2 * kTile;
constexpr float kSmallest = 1e-30f;
constexpr uint16_t kInfinity = 0x7f80;  // bf16; what is above is no number

// How the integers of keys, or of values, lie, in lines. A line has two scales: of keys those of
// two dims, of values those of two tokens.
struct Lines {
  int num_lines;
  int pair_lines;  // lines from one to that which 4 bits put into the same bytes
  int num_scales;
  bool of_keys;
  int lines_per_row;  // of keys in a tile, of values in two tokens

  // Which one number `at` of a line has.
  int scale(int line, int at) const {
    const int row = of_keys ? line % lines_per_row : line / lines_per_row;
    return 2 * row + at % 2;
  }
};

Lines KeyLines(const KvGeometry& g) {
  const int per_tile = g.padded_key_dim() / 2;
  return {g.page_tokens / kTile * per_tile, 1, g.padded_key_dim(), true, per_tile};
}

Lines ValueLines(const KvGeometry& g) {
  const int per_pair = g.padded_dim / kTile;
  return {g.page_tokens / 2 * per_pair, per_pair, g.page_tokens, false, per_pair};
}

// Of 4 bits: the line whose numbers are the low bits of the bytes that `line` is in, or is itself.
int LowLine(const Lines& lines, int line) {
  return line / lines.pair_lines % 2 == 0 ? line : line - lines.pair_lines;
}
// Where those bytes are, in lines.
int PackedLine(const Lines& lines, int line) {
  const int low = LowLine(lines, line);
  return low / (2 * lines.pair_lines) * lines.pair_lines + low % lines.pair_lines;
}

void SealLines(const Lines& lines, int bits, const uint16_t* open, std::byte* integers,
               float* scales) {
  const float most = bits == 8 ? 127.0f : 7.0f;
  std::array<float, kMaxHeadDim> inverses;  // pages have no more tokens than that
  static_assert(kMaxPageTokens <= kMaxHeadDim);
  std::fill_n(scales, lines.num_scales, 0.0f);
  for (int line = 0; line < lines.num_lines; ++line) {
    const uint16_t* const from = open + int64_t{line} * kLine;
    uint16_t even = 0, odd = 0;  // magnitudes, which are in the order of their bits
    for (int at = 0; at < kLine; at += 2) {
      even = std::max(even, static_cast<uint16_t>(from[at] & 0x7fff));
      odd = std::max(odd, static_cast<uint16_t>(from[at + 1] & 0x7fff));
    }
    float* const of_line = scales + lines.scale(line, 0);
    of_line[0] = std::max(of_line[0], Bf16ToFloat(std::min(even, kInfinity)));
    of_line[1] = std::max(of_line[1], Bf16ToFloat(std::min(odd, kInfinity)));
  }
  for (int n = 0; n < lines.num_scales; ++n) {
    inverses[n] = scales[n] > kSmallest ? most / scales[n] : 0.0f;
    scales[n] /= most;
  }
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  constexpr float kRounding = 12582912.0f;
  for (int line = 0; line < lines.num_lines; ++line) {
    const uint16_t* const from = open + int64_t{line} * kLine;
    const float* const inverse = &inverses[lines.scale(line, 0)];
    std::array<uint8_t, kLine> codes;
    for (int at = 0; at < kLine; ++at) {
      const float shifted = Bf16ToFloat(from[at]) * inverse[at % 2] + kRounding;
      codes[at] = static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) - 0x4b400000u);
    }
    if (bits == 8) {
      std::memcpy(integers + int64_t{line} * kLine, codes.data(), kLine);
      continue;
    }
    auto* const to =
        reinterpret_cast<uint8_t*>(integers) + int64_t{PackedLine(lines, line)} * kLine;
    const bool low = LowLine(lines, line) == line;
    for (int at = 0; at < kLine; ++at) {
      const auto nibble = static_cast<uint8_t>(codes[at] + 8);
      to[at] = low ? nibble : static_cast<uint8_t>(to[at] | nibble << 4);
    }
  }
}

int IntegerAt(const Lines& lines, int bits, const std::byte* integers, int line, int at) {
  if (bits == 8) return static_cast<int8_t>(integers[int64_t{line} * kLine + at]);
  const auto both = static_cast<uint8_t>(integers[int64_t{PackedLine(lines, line)} * kLine + at]);
  return (LowLine(lines, line) == line ? both & 15 : both >> 4) - 8;
}

void UnsealLines(const Lines& lines, int bits, const std::byte* integers, const float* scales,
                 uint16_t* open) {
  for (int line = 0; line < lines.num_lines; ++line) {
    const float* const scale = scales + lines.scale(line, 0);
    for (int at = 0; at < kLine; ++at) {
      const auto integer = static_cast<float>(IntegerAt(lines, bits, integers, line, at));
      open[int64_t{line} * kLine + at] = FloatToBf16(integer * scale[at % 2]);
    }
  }
}

}  // namespace

void SealSlice(const KvGeometry& g, const std::byte* open, std::byte* sealed) {
  const SealedSlice to(g, sealed);
  SealLines(KeyLines(g), g.sealed_bits, reinterpret_cast<const uint16_t*>(open), sealed,
            const_cast<float*>(to.key_scales));
  SealLines(ValueLines(g), g.sealed_bits, reinterpret_cast<const uint16_t*>(open + g.key_bytes()),
            sealed + g.sealed_key_bytes(), const_cast<float*>(to.value_scales));
}

void UnsealSlice(const KvGeometry& g, const std::byte* sealed, std::byte* open) {
  const SealedSlice from(g, sealed);
  UnsealLines(KeyLines(g), g.sealed_bits, from.keys, from.key_scales,
              reinterpret_cast<uint16_t*>(open));
  UnsealLines(ValueLines(g), g.sealed_bits, from.values, from.value_scales,
              reinterpret_cast<uint16_t*>(open + g.key_bytes()));
}

void ReadSealedValue(const KvGeometry& g, const std::byte* sealed, int token, float* out) {
  const SealedSlice from(g, sealed);
  const Lines lines = ValueLines(g);
  for (int d = 0; d < g.head_dim; ++d) {
    const int line = token / 2 * lines.lines_per_row + d / kTile;
    const int at = d % kTile * 2 + token % 2;
    out[d] = static_cast<float>(IntegerAt(lines, g.sealed_bits, from.values, line, at)) *
             from.value_scales[token];
  }
}

}  // namespace folio
