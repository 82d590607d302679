#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/tensor/weight_format.h"

namespace folio {

// A type of numbers in GGUF files: a row is a run of blocks. Source: the public description of the
// format, docs/gguf.md of github.com/ggml-org/ggml, and the blocks of its reference quantisation.
struct GgufType {
  uint32_t id = 0;
  const char* name = "";
  int block_numbers = 0;
  int block_bytes = 0;
  // Writes the numbers of `count` blocks as fp32, which holds each of them exactly but for the one
  // rounding that the definition has (of a minimum that is taken off).
  void (*decode)(const std::byte* blocks, int64_t count, float* out) = nullptr;
  // The integers that lose least of such weights.
  WeightFormat nearest;
  // A block is 8-bit integers or fewer times the fp16 number at its beginning, and no more.
  bool has_scales = false;
};

// nullptr for a type that is not read.
const GgufType* FindGgufType(uint32_t id);

// Of a block of a type with has_scales.
float GgufScale(const std::byte* block);

// "Q2_K", or "type 77" where the format has no such type.
std::string GgufTypeName(uint32_t id);

// "F32, F16, ..."
std::string KnownGgufTypes();

}  // namespace folio
