#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/types/kv_types.h"

namespace folio {

// One slice that is to be read from where its page went.
struct SliceRead {
  FrameId frame = kNoFrame;
  int slice = 0;  // layer * num_kv_heads + kv_head
  std::byte* to = nullptr;
};

// Reads that are under way. Destroying it waits for nothing: whoever started them keeps what they
// write to until `done`.
class PendingReads {
 public:
  virtual ~PendingReads() = default;
  // Waits until all have ended, or a deadline of the home's has passed; whether they have ended.
  virtual bool Wait() = 0;
  virtual bool done() const = 0;
  // Of the reads, in their order. REQUIRES: done.
  virtual const absl::Status& status(size_t read) const = 0;
};

// Where pages go that are complete: each is written once, and never changed. Everything is started
// here and goes on elsewhere; nothing here waits for a disk unless it says so. Engine thread only.
class PageHome {
 public:
  virtual ~PageHome() = default;

  // Writes a page whose slices lie at `slices`, and stay there until it is written. Pages with the
  // same `run` follow each other in one sequence: their slices are put side by side.
  virtual void StartWrite(FrameId frame, uint64_t run, std::vector<const std::byte*> slices) = 0;
  struct Written {
    FrameId frame = kNoFrame;
    absl::Status status;  // not OK: it is in memory only
  };
  // written = those that have ended since the last call; with `wait` at least one, if any is under
  // way and ends before a deadline of the home's. Needs no memory where `written` has room for all
  // that are under way.
  virtual void TakeWritten(bool wait, std::vector<Written>* written) = 0;
  // Reads slices of pages that were written; verified bytes, or an error for that slice.
  virtual std::unique_ptr<PendingReads> StartReads(std::vector<SliceRead> reads) = 0;
  // The page is not needed any more. Needs no memory. REQUIRES: it was written, or was to be and
  // could not, and is not being read.
  virtual void Free(FrameId frame) = 0;
};

}  // namespace folio
