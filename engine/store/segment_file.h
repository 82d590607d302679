#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/content_key.h"
#include "engine/store/file_system.h"

namespace folio {

// Of the layout below. Another one is another model (ModelContent).
inline constexpr uint32_t kSegmentVersion = 4;

// What lies in a segment. The store does not look into it.
// kOpenPages: pages that are not complete, where those lie otherwise; else they are kPages.
enum class SegmentKind : uint8_t { kPages, kSinks, kSummaries, kPendingQueries, kOpenPages };
inline constexpr int kNumSegmentKinds = 5;

// `slice` counts the slices of a page: layer * num_kv_heads + kv_head.
struct SegmentShape {
  SegmentKind kind = SegmentKind::kPages;
  int num_slices = 0;
  int64_t slice_bytes = 0;
  // In the sequence: the segment holds pages [first_page, first_page + num_pages).
  int64_t first_page = 0;
  int num_pages = 0;

  bool operator==(const SegmentShape&) const = default;
  // Errors: INVALID_ARGUMENT with the limits.
  absl::Status Check() const;
  // Of a segment of this shape, which was checked.
  int64_t FileBytes() const;
};

// A file that holds the data of a segment and nothing else, in its layout.
struct SegmentData {
  const OutputFile* file = nullptr;
  std::span<const uint64_t> checksums;  // [slice][page] XXH3-64
};

// Pages of one rendition in one file, written once and never changed:
//   data      [slice][page], each slice of a page on a boundary of 4 KiB: the pages of a chunk lie
//             one after the other for each layer and KV head, and are one read
//   index     [slice][page] XXH3-64 of the data
//   footer    magic, version, shape, key, checksums of the index and of itself
// Numbers are little-endian. To open a segment is one read, of index and footer; at the end of the
// file, since Linux reads far ahead of what is read at the beginning. One thread.
class SegmentWriter {
 public:
  static constexpr int kMaxPages = 64;

  // Errors: INVALID_ARGUMENT (shape), those of FileSystem::Create.
  static absl::StatusOr<SegmentWriter> Create(FileSystem* files, const std::string& path,
                                              const ContentKey& key, const SegmentShape& shape);
  // The data is there already, and its file gets the name: only Finish is left to be called. The
  // file must not be part of another segment. Errors: as Create, those of FileSystem::Link; then
  // there is nothing under the name.
  static absl::StatusOr<SegmentWriter> Link(FileSystem* files, const std::string& path,
                                            const ContentKey& key, const SegmentShape& shape,
                                            const SegmentData& data);
  // Where the data of a page's slice lies in the file.
  static int64_t DataOffset(const SegmentShape& shape, int slice, int page);

  // One slice of all pages, each of slice_bytes; in any order of slices, each once. Errors:
  // INVALID_ARGUMENT, those of OutputFile::Write.
  absl::Status WriteSlice(int slice, std::span<const std::byte* const> pages);
  // The file is durable afterwards, its name once its directory is synced. Errors:
  // FAILED_PRECONDITION if a slice is missing. Not called: the file is no segment.
  absl::Status Finish();

 private:
  SegmentWriter(std::unique_ptr<OutputFile> file, const ContentKey& key, const SegmentShape& shape);

  std::unique_ptr<OutputFile> file_;
  ContentKey key_;
  SegmentShape shape_;
  std::vector<uint64_t> checksums_;  // [slice][page]
  std::vector<bool> written_;        // [slice]
  std::vector<std::byte> gathered_;  // pages, as they lie in the file
};

// A segment that is read. Every byte is verified before it is handed out. Thread-safe.
class Segment {
 public:
  // Reads index and footer. Errors: NOT_FOUND; DATA_LOSS if it is torn, cut, of another version or
  // shape, or not of `key`.
  static absl::StatusOr<Segment> Open(FileSystem* files, const std::string& path,
                                      const ContentKey& key, const SegmentShape& shape);

  // Reads one slice of pages [page, page + to.size()) of the segment, each into slice_bytes at
  // to[i], in one operation. Errors: INVALID_ARGUMENT if there are no such; DATA_LOSS if the bytes
  // are not those that were written, and those of StoredFile::Read; what lies at `to` then must not
  // be used.
  absl::Status Read(int slice, int page, std::span<std::byte* const> to) const;

  const SegmentShape& shape() const { return shape_; }
  int64_t file_bytes() const { return file_->size_bytes(); }

 private:
  Segment(std::unique_ptr<StoredFile> file, std::string path, const SegmentShape& shape,
          std::vector<uint64_t> checksums);

  std::unique_ptr<StoredFile> file_;
  std::string path_;
  SegmentShape shape_;
  std::vector<uint64_t> checksums_;
};

}  // namespace folio
