#include "engine/runtime/cache_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/for_all.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

using Frame = CacheImage::Frame;

constexpr int kPages = SegmentWriter::kMaxPages;
// Beside the caller: a disk serves several reads at a time.
constexpr int kReadHelpers = 3;

const std::vector<Frame>& FramesOfKind(const CacheImage& image, SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kSinks:
      return image.sinks;
    case SegmentKind::kSummaries:
      return image.summaries;
    case SegmentKind::kPendingQueries:
      return image.pending_queries;
    case SegmentKind::kPages:
    case SegmentKind::kOpenPages:
      break;
  }
  return image.pages;
}

// Of the frames of this kind: the first one that is in memory.
int64_t FirstInMemory(const CacheImage& image, SegmentKind kind) {
  const bool of_pages = kind == SegmentKind::kPages || kind == SegmentKind::kOpenPages;
  return of_pages ? image.first_in_memory : 0;
}

SegmentShape ShapeOf(const CacheImage& image, SegmentKind kind, int64_t first, int64_t end) {
  const KvGeometry& geometry = image.geometry;
  SegmentShape shape;
  shape.kind = kind;
  shape.num_slices = geometry.num_layers;
  shape.first_page = first;
  shape.num_pages = static_cast<int>(end - first);
  if (kind == SegmentKind::kPages) {
    shape.num_slices = geometry.num_slices();
    shape.slice_bytes = image.page_slice_bytes;
  } else if (kind == SegmentKind::kOpenPages) {
    shape.num_slices = geometry.num_slices();
    shape.slice_bytes = image.open_slice_bytes();
  } else if (kind == SegmentKind::kSummaries) {
    shape.slice_bytes = geometry.summary_frame_bytes() / geometry.num_layers;
  } else {
    shape.slice_bytes = geometry.frame_bytes() / geometry.num_layers;
  }
  return shape;
}

void AddShapes(const CacheImage& image, SegmentKind kind, int64_t first, int64_t end,
               std::vector<SegmentShape>* shapes) {
  for (int64_t at = first; at < end;) {
    const int64_t next = std::min(end, (at / kPages + 1) * kPages);
    shapes->push_back(ShapeOf(image, kind, at, next));
    at = next;
  }
}

const ContentKey& KeyOf(const std::vector<ContentKey>& keys, const CacheLayout& layout,
                        const SegmentShape& shape) {
  if (shape.kind == SegmentKind::kPages) return keys[shape.first_page / kPages];
  if (shape.kind != SegmentKind::kSummaries) return keys.back();
  const int64_t end = shape.first_page + shape.num_pages;
  const int64_t full = (end + layout.summary_vectors - 1) / layout.summary_vectors;
  const int64_t last_page = (full * layout.summary_tokens - 1) / layout.page_tokens;
  return keys[std::min<int64_t>(last_page / kPages, std::ssize(keys) - 1)];
}

// One slice of sealed pages [begin, end) of the sequence, one after the other.
absl::Status ReadSealed(const CacheImage& image, int slice, int64_t begin, int64_t end,
                        std::byte* to) {
  std::vector<std::byte*> pages;
  while (begin < end) {
    const SegmentHome::Place& place = image.sealed_pages[begin - image.layout.first_page];
    pages.clear();  // that follow each other in one file
    do {
      pages.push_back(to);
      to += image.page_slice_bytes;
      if (++begin == end) break;
      const SegmentHome::Place& next = image.sealed_pages[begin - image.layout.first_page];
      if (next.file != place.file || next.page != place.page + std::ssize(pages)) break;
    } while (true);
    FOLIO_RETURN_IF_ERROR(place.file->Read(slice, place.page, pages));
  }
  return absl::OkStatus();
}

// The file that the pages of a segment were written to, if it has these and no others.
std::optional<SegmentData> TakeWholeFile(const CacheImage& image, const SegmentShape& shape) {
  const int64_t end = shape.first_page + shape.num_pages;
  const int64_t first_page = image.layout.first_page;
  if (shape.kind != SegmentKind::kPages || shape.num_pages != SegmentHome::kPages ||
      end - first_page > std::ssize(image.sealed_pages)) {
    return std::nullopt;
  }
  const auto places = std::span(image.sealed_pages)
                          .subspan(static_cast<size_t>(shape.first_page - first_page),
                                   static_cast<size_t>(shape.num_pages));
  for (int page = 0; page < shape.num_pages; ++page) {
    const SegmentHome::Place& place = places[static_cast<size_t>(page)];
    if (place.file != places[0].file || place.page != page) return std::nullopt;
  }
  return places[0].file->TakeSegmentData();
}

absl::StatusOr<SegmentDraft> LinkSegment(const CacheImage& image, const SegmentShape& shape,
                                         const ContentKey& key, int64_t rendition,
                                         DocumentWriter* writer) {
  const std::optional<SegmentData> data = TakeWholeFile(image, shape);
  if (!data.has_value()) return absl::NotFoundError("no file has just the pages of a segment");
  return writer->LinkSegment(rendition, shape, key, *data);
}

absl::Status WriteSegment(const CacheImage& image, const SegmentShape& shape, SegmentDraft* draft,
                          DiskProgress* progress) {
  const int64_t begin = shape.first_page;
  const int64_t end = begin + shape.num_pages;
  const int64_t first_in_memory = FirstInMemory(image, shape.kind);
  const int64_t sealed_end = std::clamp(first_in_memory, begin, end);
  const std::vector<Frame>& frames = FramesOfKind(image, shape.kind);
  std::vector<std::byte> sealed(static_cast<size_t>((sealed_end - begin) * shape.slice_bytes));
  std::vector<const std::byte*> pages(shape.num_pages);
  for (int slice = 0; slice < shape.num_slices; ++slice) {
    FOLIO_RETURN_IF_ERROR(ReadSealed(image, slice, begin, sealed_end, sealed.data()));
    for (int64_t n = begin; n < end; ++n) {
      pages[n - begin] = n < sealed_end ? sealed.data() + (n - begin) * shape.slice_bytes
                                        : frames[n - first_in_memory][slice];
    }
    FOLIO_RETURN_IF_ERROR(draft->WriteSlice(slice, pages));
    progress->Note();
  }
  return absl::OkStatus();
}

// What of a segment is in memory, slice by slice.
absl::Status ReadSegment(const Segment& segment, const CacheImage& image, DiskProgress* progress) {
  const SegmentShape& shape = segment.shape();
  const std::vector<Frame>& frames = FramesOfKind(image, shape.kind);
  const int64_t first_in_memory = FirstInMemory(image, shape.kind);
  const int64_t begin = std::max(shape.first_page, first_in_memory);
  const int64_t end = shape.first_page + shape.num_pages;
  std::vector<std::byte*> to;
  for (int slice = 0; slice < shape.num_slices && begin < end; ++slice) {
    to.clear();
    for (int64_t n = begin; n < end; ++n) to.push_back(frames[n - first_in_memory][slice]);
    FOLIO_RETURN_IF_ERROR(segment.Read(slice, static_cast<int>(begin - shape.first_page), to));
    progress->Note();
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ContentKey> SegmentKeys(const Fingerprint& model, std::string_view attention,
                                    std::span<const int32_t> tokens, int page_tokens) {
  std::vector<ContentKey> keys;
  ContentKey key = FirstKey(model, attention, "");
  const auto segment_tokens = static_cast<size_t>(kPages) * page_tokens;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(segment_tokens, tokens.size()))) {
    key = NextKey(key, tokens.first(std::min(segment_tokens, tokens.size())));
    keys.push_back(key);
  }
  return keys;
}

std::vector<SegmentShape> SegmentShapes(const CacheImage& image) {
  const CacheLayout& layout = image.layout;
  std::vector<SegmentShape> shapes;
  const int64_t end = image.geometry.sealed_bits == 0 ? layout.end_page : layout.open_page;
  AddShapes(image, SegmentKind::kPages, layout.first_page, end, &shapes);
  AddShapes(image, SegmentKind::kOpenPages, end, layout.end_page, &shapes);
  AddShapes(image, SegmentKind::kSinks, 0, layout.num_sinks, &shapes);
  AddShapes(image, SegmentKind::kPendingQueries, 0, layout.num_pending_queries, &shapes);
  AddShapes(image, SegmentKind::kSummaries, 0, layout.num_summaries, &shapes);
  return shapes;
}

int64_t CacheFileBytes(const CacheImage& image) {
  int64_t bytes = 0;
  for (const SegmentShape& shape : SegmentShapes(image)) bytes += shape.FileBytes();
  return bytes;
}

int64_t BytesBesideSealedPages(const CacheImage& image) {
  int64_t bytes = 0;
  for (const SegmentShape& shape : SegmentShapes(image)) {
    const int64_t first = std::max(shape.first_page, FirstInMemory(image, shape.kind));
    const int64_t num_pages = std::max<int64_t>(0, shape.first_page + shape.num_pages - first);
    bytes += num_pages * shape.num_slices * shape.slice_bytes;
  }
  return bytes;
}

std::vector<const StoredSegment*> SegmentsThere(const CacheImage& image,
                                                const std::vector<ContentKey>& keys,
                                                const StoredRendition* rendition) {
  const std::vector<SegmentShape> shapes = SegmentShapes(image);
  std::vector<const StoredSegment*> there(shapes.size(), nullptr);
  if (rendition == nullptr) return there;
  std::map<std::pair<SegmentKind, int64_t>, const StoredSegment*> known;
  for (const StoredSegment& segment : rendition->segments) {
    known[{segment.shape.kind, segment.shape.first_page}] = &segment;
  }
  for (size_t n = 0; n < shapes.size(); ++n) {
    const auto found = known.find({shapes[n].kind, shapes[n].first_page});
    if (found == known.end() || found->second->shape != shapes[n]) continue;
    if (found->second->key == KeyOf(keys, image.layout, shapes[n])) there[n] = found->second;
  }
  return there;
}

bool IsCacheOf(const StoredRendition& rendition, const CacheImage& image,
               const std::vector<ContentKey>& keys) {
  const std::vector<SegmentShape> shapes = SegmentShapes(image);
  return std::equal(rendition.segments.begin(), rendition.segments.end(), shapes.begin(),
                    shapes.end(), [&](const StoredSegment& segment, const SegmentShape& shape) {
                      return segment.shape == shape &&
                             segment.key == KeyOf(keys, image.layout, shape);
                    });
}

absl::StatusOr<std::vector<StoredSegment>> WriteCache(
    const CacheImage& image, const std::vector<ContentKey>& keys,
    const std::vector<const StoredSegment*>& there, int64_t rendition, DocumentWriter* writer,
    DiskProgress* progress) {
  const std::vector<SegmentShape> shapes = SegmentShapes(image);
  std::vector<StoredSegment> segments;
  for (size_t n = 0; n < shapes.size(); ++n) {
    if (there[n] != nullptr) {
      segments.push_back(*there[n]);
      continue;
    }
    const ContentKey& key = KeyOf(keys, image.layout, shapes[n]);
    auto linked = LinkSegment(image, shapes[n], key, rendition, writer);
    if (linked.ok()) {
      FOLIO_ASSIGN_OR_RETURN(segments.emplace_back(), linked->Finish());
      continue;
    }
    FOLIO_ASSIGN_OR_RETURN(SegmentDraft draft, writer->AddSegment(rendition, shapes[n], key));
    FOLIO_RETURN_IF_ERROR(WriteSegment(image, shapes[n], &draft, progress));
    FOLIO_ASSIGN_OR_RETURN(segments.emplace_back(), draft.Finish());
  }
  return segments;
}

absl::Status ReadCache(const DocumentStore& store, const DocumentHandle& handle,
                       const StoredRendition& rendition, const CacheImage& image,
                       TaskThreads* helpers, DiskProgress* progress) {
  std::vector<const StoredSegment*> segments;
  for (const StoredSegment& stored : rendition.segments) {
    const SegmentShape& shape = stored.shape;
    const bool sealed = shape.kind == SegmentKind::kPages &&
                        shape.first_page + shape.num_pages <= image.first_in_memory;
    if (!sealed) segments.push_back(&stored);
  }
  const int num_segments = static_cast<int>(segments.size());
  return ForAll(num_segments, kReadHelpers, helpers, [&](int n) -> absl::Status {
    FOLIO_ASSIGN_OR_RETURN(const Segment segment,
                           store.OpenSegment(handle, rendition.number, *segments[n]));
    return ReadSegment(segment, image, progress);
  });
}

}  // namespace folio
