#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "engine/store/segment_file.h"

namespace folio {

// A file in which pages lie. Thread-safe.
class PageFile {
 public:
  virtual ~PageFile() = default;
  // Opens it now: what is open can be read when its name is gone. Errors: as Read.
  virtual absl::Status Open() { return absl::OkStatus(); }
  // Reads one slice of pages [page, page + to.size()) of the file, each into a slice at to[i], and
  // verifies them. Errors: DATA_LOSS, those of StoredFile::Read; what lies at `to` then means
  // nothing.
  virtual absl::Status Read(int slice, int page, std::span<std::byte* const> to) = 0;
  // The file as a segment of the store, if it is complete and not part of one yet; from now on it
  // is.
  virtual std::optional<SegmentData> TakeSegmentData() { return std::nullopt; }
};

}  // namespace folio
