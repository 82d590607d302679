#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/tensor/tensor_view.h"
#include "engine/tensor/weight_format.h"

namespace folio::cpu {

// Outputs of one weight panel: two vectors of 16.
inline constexpr int kPanel = 32;
// Inputs that share a scale, at most.
inline constexpr int kMaxWeightGroup = 128;

// How the panels of a packed matrix store its weights. A panel is a run of groups of inputs, each
// with the weights of all its outputs; inputs are filled up to whole groups with zeros.
//   bf16        pairs of inputs: [2 vectors][16 outputs][2 inputs]
//   fp32, fp16  pairs of inputs: [2 inputs][32 outputs]
//   int8        [group / 4][32 outputs][4 inputs], then scales
//   int4        [group / 8][32 outputs][4 bytes], eight added to each weight, inputs 0..3 of eight
//               in the low halves of the bytes and 4..7 in the high ones; then scales
// Scales are fp16, [32 outputs]. Behind the last group of a panel of integers are the outputs'
// units (integer_weights.h), bf16, [16][2]: of outputs i and i + 16. Files hold panels as they are:
// whoever changes a byte of them changes kPanelLayout.
inline constexpr char kPanelLayout[] = "cpu-panels-2";
struct PanelFormat {
  enum class Codec : uint8_t { kF32, kF16, kBf16, kInt8, kInt4 };
  Codec codec = Codec::kF32;
  int group = 2;  // inputs

  // REQUIRES: `given` is fp32, fp16 or bf16.
  static PanelFormat Of(DType given, const WeightFormat& format);

  bool integers() const { return codec == Codec::kInt8 || codec == Codec::kInt4; }
  int64_t num_groups(int64_t inputs) const { return (inputs + group - 1) / group; }
  // Bytes of one group of a panel, and of a panel of so many groups.
  int64_t group_bytes() const;
  int64_t panel_bytes(int64_t num_groups) const {
    return num_groups * group_bytes() + (integers() ? 2 * kPanel : 0);
  }
  // 4-byte words of one group of inputs of one row, as kernels multiply it.
  int64_t x_words() const { return integers() ? 2 + group / 4 : 2; }
};

// TensorView::scales of one row; null: none.
struct RowScales {
  const float* scales = nullptr;
  int group = 0;
};

// Writes the weights of output `lane` of a panel. `source` [inputs] of dtype `given`; the panel was
// zero before. Integers of groups that lie inside those of `scales` are kept.
void PackPanelRow(const PanelFormat& format, DType given, const std::byte* source, int64_t inputs,
                  const RowScales& scales, int lane, std::byte* panel);

// The weights of output `lane` as they are multiplied with, out [inputs].
void ReadPanelRow(const PanelFormat& format, const std::byte* panel, int lane, int64_t inputs,
                  float* out);

}  // namespace folio::cpu
