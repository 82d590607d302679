#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/rotation_table.h"
#include "engine/types/kv_types.h"
#include "engine/types/rotary.h"

namespace folio {

// Everything about one rotary table that attention looks up. Grown on the engine thread before a
// step; read from any thread in between.
class RopeTables {
 public:
  RopeTables(const Rotary& rotary, int page_tokens);

  // cos and sin of one fixed position, [head_dim / 2] each.
  struct Rotation {
    std::span<const float> cos;
    std::span<const float> sin;
  };
  void AddFixed(int64_t position);
  Rotation Fixed(int64_t position) const;

  // Fills `to`, [page_tokens/16][padded_dim][16], with the raw keys of a page, each rotated by its
  // offset in the page or, for paired keys only, not at all.
  void RotatePage(const KvGeometry& geometry, const cpu::Kernels& kernels, bool rotate,
                  const std::byte* from, std::byte* to) const;

  RotationTable positions;  // stride 1
  RotationTable pages;      // stride page_tokens
  const float logit_factor;

 private:
  void FillLanes(int page_tokens);

  const std::vector<float> theta_;
  // [page_tokens/16 + 1][theta][16]: tokens of a page side by side; the last tile turns by nothing.
  std::vector<float> lane_cos_;
  std::vector<float> lane_sin_;
  std::map<int64_t, std::vector<float>> fixed_;
};

// The tables of the position schemes in use, found by content. Engine thread only.
class RopeTableCache {
 public:
  explicit RopeTableCache(int page_tokens) : page_tokens_(page_tokens) {}

  // Tables stay valid until the end of the next step.
  RopeTables* Get(const Rotary& rotary);
  // Forgets what the last two steps did not use, if there are many (a length that changes with
  // every token makes a table per step).
  void BeginStep();

 private:
  struct Entry {
    std::unique_ptr<RopeTables> tables;
    int64_t last_step = 0;
  };
  const int page_tokens_;
  int64_t step_ = 0;
  std::map<Rotary, Entry> entries_;
};

}  // namespace folio
