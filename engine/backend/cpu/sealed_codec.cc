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

// Rows are dims of keys and tokens of values, which have a scale each. An open page is lines of two
// rows, [16][2] numbers, a sealed one lines of four, [16][4]; those of the next rows lie `stride`
// lines further.
constexpr int kOpenLine = 2 * kTile;
constexpr int kSealedLine = 4 * kTile;
constexpr float kSmallest = 1e-30f;
constexpr uint16_t kInfinity = 0x7f80;  // bf16; what is above is no number

// The lines of keys, or of values.
struct Lines {
  int num_open;
  int stride;
  int num_rows;  // that have scales: keys of all tiles share those of their dims

  // The first row of an open line, as its scale is numbered.
  int row(int open) const { return 2 * (open / stride) % num_rows; }
};

Lines KeyLines(const KvGeometry& g) {
  return {g.page_tokens / kTile * g.padded_key_dim() / 2, 1, g.padded_key_dim()};
}

Lines ValueLines(const KvGeometry& g) {
  const int stride = g.padded_dim / kTile;
  return {g.page_tokens / 2 * stride, stride, g.page_tokens};
}

// Where the line that has two lines of a form in it lies, in lines, and whether in its second half.
struct Half {
  int line;
  bool second;
};
Half HalfOf(int line, int stride) {
  const int rows = line / stride;
  return {rows / 2 * stride + line % stride, rows % 2 == 1};
}

// Where the numbers of an open line lie in a sealed slice: number `at` in byte at / 2 * 4 + at % 2,
// in its low or high bits where it is one of 4 bits.
struct Place {
  int64_t byte;
  bool high;
};
Place PlaceOf(const Lines& lines, int bits, int open) {
  const Half quad = HalfOf(open, lines.stride);
  const int64_t in_line = quad.second ? 2 : 0;
  if (bits == 8) return {int64_t{quad.line} * kSealedLine + in_line, false};
  const Half packed = HalfOf(quad.line, lines.stride);
  return {int64_t{packed.line} * kSealedLine + in_line, packed.second};
}

constexpr int ByteOf(int at) { return at / 2 * 4 + at % 2; }

void SealLines(const Lines& lines, int bits, const uint16_t* open, std::byte* integers,
               float* scales) {
  const float most = bits == 8 ? 127.0f : 7.0f;
  std::array<float, kMaxHeadDim> inverses;  // pages have no more tokens than that
  static_assert(kMaxPageTokens <= kMaxHeadDim);
  std::fill_n(scales, lines.num_rows, 0.0f);
  for (int line = 0; line < lines.num_open; ++line) {
    const uint16_t* const from = open + int64_t{line} * kOpenLine;
    uint16_t even = 0, odd = 0;  // magnitudes, which are in the order of their bits
    for (int at = 0; at < kOpenLine; at += 2) {
      even = std::max(even, static_cast<uint16_t>(from[at] & 0x7fff));
      odd = std::max(odd, static_cast<uint16_t>(from[at + 1] & 0x7fff));
    }
    float* const of_line = scales + lines.row(line);
    of_line[0] = std::max(of_line[0], Bf16ToFloat(std::min(even, kInfinity)));
    of_line[1] = std::max(of_line[1], Bf16ToFloat(std::min(odd, kInfinity)));
  }
  for (int n = 0; n < lines.num_rows; ++n) {
    inverses[n] = scales[n] > kSmallest ? most / scales[n] : 0.0f;
    scales[n] /= most;
  }
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  constexpr float kRounding = 12582912.0f;
  for (int line = 0; line < lines.num_open; ++line) {
    const uint16_t* const from = open + int64_t{line} * kOpenLine;
    const float* const inverse = &inverses[lines.row(line)];
    std::array<uint8_t, kOpenLine> codes;
    for (int at = 0; at < kOpenLine; ++at) {
      const float shifted = Bf16ToFloat(from[at]) * inverse[at % 2] + kRounding;
      codes[at] = static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) - 0x4b400000u);
    }
    const Place place = PlaceOf(lines, bits, line);
    auto* const to = reinterpret_cast<uint8_t*>(integers + place.byte);
    for (int at = 0; at < kOpenLine; ++at) {
      uint8_t* const byte = to + ByteOf(at);
      if (bits == 8) {
        *byte = codes[at];
      } else {
        const auto nibble = static_cast<uint8_t>(codes[at] + 8);
        *byte = place.high ? static_cast<uint8_t>(*byte | nibble << 4) : nibble;
      }
    }
  }
}

int IntegerAt(Place place, int bits, const std::byte* integers, int at) {
  const std::byte byte = integers[place.byte + ByteOf(at)];
  if (bits == 8) return static_cast<int8_t>(byte);
  return static_cast<int>(place.high ? byte >> 4 : byte & std::byte{15}) - 8;
}

void UnsealLines(const Lines& lines, int bits, const std::byte* integers, const float* scales,
                 uint16_t* open) {
  for (int line = 0; line < lines.num_open; ++line) {
    const Place place = PlaceOf(lines, bits, line);
    const float* const scale = scales + lines.row(line);
    for (int at = 0; at < kOpenLine; ++at) {
      const auto integer = static_cast<float>(IntegerAt(place, bits, integers, at));
      open[int64_t{line} * kOpenLine + at] = FloatToBf16(integer * scale[at % 2]);
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
    const Place place = PlaceOf(lines, g.sealed_bits, token / 2 * lines.stride + d / kTile);
    const int at = d % kTile * 2 + token % 2;
    out[d] = static_cast<float>(IntegerAt(place, g.sealed_bits, from.values, at)) *
             from.value_scales[token];
  }
}

}  // namespace folio
