#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/task_threads.h"
#include "engine/kv/kv_store.h"
#include "engine/runtime/disk_progress.h"
#include "engine/runtime/segment_home.h"
#include "engine/store/document_store.h"

namespace folio {

// Where the cache of a sequence lies that does not change any more. Bytes are valid as long as the
// sequence holds its frames.
struct CacheImage {
  KvGeometry geometry;
  CacheLayout layout;
  int64_t page_slice_bytes = 0;  // of a slice of a page
  // Pages before this one are in files; the others the host can read and write.
  int64_t first_in_memory = 0;
  // Pages [first_page, first_in_memory), if they were computed by this process; else empty.
  std::vector<SegmentHome::Place> sealed_pages;
  // The other pages, sinks, pending queries and summaries: the parts of each, which are layers (of
  // pages: slices).
  using Frame = std::vector<std::byte*>;
  std::vector<Frame> pages;
  std::vector<Frame> sinks;
  std::vector<Frame> pending_queries;
  std::vector<Frame> summaries;
  // Of what CopyWhatChanges has copied, or of what lies on a device.
  std::shared_ptr<std::vector<std::byte>> copies;
  // Of a device: where the host's copies of frames are copies of.
  struct DeviceFrame {
    std::byte* device = nullptr;
    std::byte* copy = nullptr;
    int64_t bytes = 0;
  };
  std::vector<DeviceFrame> device_frames;

  // Of a slice of an open page.
  int64_t open_slice_bytes() const {
    return geometry.sealed_bits == 0 ? page_slice_bytes : geometry.slice_bytes();
  }
  // From now on the sequence may go on: what it would write is copied. Of a device nothing is left
  // to be copied once CopyFromDevice was called. Throws std::bad_alloc.
  void CopyWhatChanges();
  // Brings what the device has to the host, or back. Engine thread.
  void CopyFromDevice(Memory* memory) const;
  void CopyToDevice(Memory* memory) const;

  // Without sealed pages; of a device, without what CopyFromDevice brings. REQUIRES: the sequence
  // has the cache of num_tokens tokens. Throws std::bad_alloc.
  static CacheImage Of(const KvStore& store, const AttentionPlan& plan, int64_t num_tokens,
                       const SequenceKv& kv);

 private:
  void AddFrames(const KvStore& store, const SequenceKv& kv);
  void AddDeviceFrames(const KvStore& store, const SequenceKv& kv);
};

// The keys of the segments of a cache: that of pages [64 n, 64 (n + 1)) is keys[n], that of
// summaries the one of the last page that they were made of, that of all others the last one. A
// text that grows keeps the keys of segments that are full.
std::vector<ContentKey> SegmentKeys(const Fingerprint& model, std::string_view attention,
                                    std::span<const int32_t> tokens, int page_tokens);

// What the cache of `layout` is made of, in the order in which segments are written: their shapes.
std::vector<SegmentShape> SegmentShapes(const CacheImage& image);

// Of all of them; and of what of them ReadCache reads.
int64_t CacheFileBytes(const CacheImage& image);
int64_t BytesBesideSealedPages(const CacheImage& image);

// For each of them the one of a rendition, which may be null, that has its shape and key, or null.
std::vector<const StoredSegment*> SegmentsThere(const CacheImage& image,
                                                const std::vector<ContentKey>& keys,
                                                const StoredRendition* rendition);

// Whether the segments of a rendition are those of `image` and `keys`.
bool IsCacheOf(const StoredRendition& rendition, const CacheImage& image,
               const std::vector<ContentKey>& keys);

// Writes the segments that are not `there`, and returns all; nothing is committed. Errors: those of
// SegmentDraft, DATA_LOSS if a sealed page cannot be read.
absl::StatusOr<std::vector<StoredSegment>> WriteCache(
    const CacheImage& image, const std::vector<ContentKey>& keys,
    const std::vector<const StoredSegment*>& there, int64_t rendition, DocumentWriter* writer,
    DiskProgress* progress);

// Reads all but the sealed pages to where the image says; `helpers` read along. Errors: those of
// DocumentStore::OpenSegment and Segment::Read.
absl::Status ReadCache(const DocumentStore& store, const DocumentHandle& handle,
                       const StoredRendition& rendition, const CacheImage& image,
                       TaskThreads* helpers, DiskProgress* progress);

}  // namespace folio
