#pragma once

#include "engine/types/kv_types.h"

namespace folio {

// Frames with reference counts. A reference may be open: its owner still writes the frame, or reads
// it by other ways than SliceSource. Engine thread only.
class Frames {
 public:
  virtual ~Frames() = default;

  // A zeroed or reused frame with one open reference; kNoFrame if there is none.
  virtual FrameId Allocate() = 0;
  virtual void AddRef(FrameId id, bool open) = 0;
  virtual void Release(FrameId id, bool open) = 0;
  // An open reference is open no longer, and what it has written is all that the frame will hold.
  virtual void Seal(FrameId id) = 0;
  virtual bool IsShared(FrameId id) const = 0;
  // REQUIRES: both are open.
  virtual void Copy(FrameId from, FrameId to) = 0;
};

}  // namespace folio
