// Where the parts of a cache lie in memory, and copies of them.
#include <cstring>
#include <utility>

#include "engine/runtime/cache_files.h"

namespace folio {
namespace {

using Frame = CacheImage::Frame;

Frame PartsOf(std::byte* base, int count, int64_t bytes) {
  Frame parts(count);
  for (int n = 0; n < count; ++n) parts[n] = base + n * bytes;
  return parts;
}

std::vector<Frame> FramesOf(const FrameMemory& memory, const std::vector<FrameId>& ids, int count,
                            int64_t bytes) {
  std::vector<Frame> frames;
  frames.reserve(ids.size());
  for (const FrameId id : ids) frames.push_back(PartsOf(memory.Frame(id), count, bytes));
  return frames;
}

}  // namespace

CacheImage CacheImage::Of(const KvStore& store, const AttentionPlan& plan, int64_t num_tokens,
                          const SequenceKv& kv) {
  CacheImage image;
  image.geometry = store.geometry();
  image.layout = store.LayoutOf(plan, num_tokens);
  image.page_slice_bytes = store.page_memory().slice_bytes;
  if (store.home() == Tier::kHost) {
    image.AddDeviceFrames(store, kv);
  } else {
    image.AddFrames(store, kv);
  }
  return image;
}

void CacheImage::AddFrames(const KvStore& store, const SequenceKv& kv) {
  const SliceMemory memory = store.page_memory();
  first_in_memory = layout.home_page;
  for (int64_t n = first_in_memory; n < layout.end_page; ++n) {
    Frame& frame = pages.emplace_back(geometry.num_slices());
    const FrameId id = kv.pages[n - kv.first_page];
    for (int slice = 0; slice < geometry.num_slices(); ++slice) {
      frame[slice] =
          store.seals() && n >= layout.open_page
              ? store.frame_memory().Frame(store.OpenFrameOf(id)) + slice * open_slice_bytes()
              : memory.Slice(id, slice);
    }
  }
  const int layers = geometry.num_layers;
  const int64_t frame_part = geometry.frame_bytes() / layers;
  sinks = FramesOf(store.frame_memory(), kv.sinks, layers, frame_part);
  pending_queries = FramesOf(store.frame_memory(), kv.pending_queries, layers, frame_part);
  summaries = FramesOf(store.summary_memory(), kv.summaries, layers,
                       geometry.summary_frame_bytes() / layers);
}

// Pages at home are read and written there, all else in copies.
void CacheImage::AddDeviceFrames(const KvStore& store, const SequenceKv& kv) {
  const int64_t frame_bytes = geometry.frame_bytes();
  const auto add = [&](const FrameMemory& memory, std::span<const FrameId> ids, int64_t bytes) {
    for (const FrameId id : ids) device_frames.push_back({memory.Frame(id), nullptr, bytes});
  };
  std::vector<FrameId> open;
  for (int64_t n = layout.first_page; n < layout.end_page; ++n) {
    const FrameId place = store.page_places()[kv.pages[n - kv.first_page]];
    if (place >= 0) open.push_back(place);
  }
  add(store.frame_memory(), open, frame_bytes);
  add(store.frame_memory(), kv.sinks, frame_bytes);
  add(store.frame_memory(), kv.pending_queries, frame_bytes);
  add(store.summary_memory(), kv.summaries, geometry.summary_frame_bytes());
  int64_t bytes = 0;
  for (const DeviceFrame& frame : device_frames) bytes += frame.bytes;
  copies = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  std::byte* at = copies->data();
  for (DeviceFrame& frame : device_frames) frame.copy = std::exchange(at, at + frame.bytes);

  auto next = device_frames.cbegin();
  const int layers = geometry.num_layers;
  const auto take = [&](size_t count, std::vector<Frame>* frames) {
    for (size_t n = 0; n < count; ++n, ++next) {
      frames->push_back(PartsOf(next->copy, layers, next->bytes / layers));
    }
  };
  first_in_memory = layout.first_page;
  const int slices = geometry.num_slices();
  for (int64_t n = layout.first_page; n < layout.end_page; ++n) {
    const FrameId id = kv.pages[n - kv.first_page];
    std::byte* const from =
        store.page_places()[id] < 0 ? store.host_tier()->Page(id) : (next++)->copy;
    pages.push_back(PartsOf(from, slices, geometry.slice_bytes()));
  }
  take(kv.sinks.size(), &sinks);
  take(kv.pending_queries.size(), &pending_queries);
  take(kv.summaries.size(), &summaries);
}

void CacheImage::CopyFromDevice(Memory* memory) const {
  if (copies == nullptr) return;
  // With no frames, too: pages are on their way home.
  std::vector<Memory::Piece> pieces;
  for (const DeviceFrame& frame : device_frames) {
    pieces.push_back({frame.copy, frame.device, frame.bytes});
  }
  memory->ReadPieces(pieces);
}

void CacheImage::CopyToDevice(Memory* memory) const {
  for (const DeviceFrame& frame : device_frames) {
    memory->Write(frame.device, frame.copy, frame.bytes);
  }
}

void CacheImage::CopyWhatChanges() {
  if (copies != nullptr) return;
  const int layers = geometry.num_layers;
  struct Part {
    std::span<Frame> frames;
    size_t part_bytes;
  };
  const auto frame_part = static_cast<size_t>(geometry.frame_bytes() / layers);
  const auto num_sealed =
      static_cast<size_t>(std::max<int64_t>(0, layout.open_page - first_in_memory));
  const Part parts[] = {
      {std::span(pages).first(num_sealed), static_cast<size_t>(page_slice_bytes)},
      {std::span(pages).subspan(num_sealed), static_cast<size_t>(open_slice_bytes())},
      {sinks, frame_part},
      {pending_queries, frame_part},
      {std::span(summaries).subspan(static_cast<size_t>(layout.open_summary)),
       static_cast<size_t>(geometry.summary_frame_bytes() / layers)}};
  size_t num_bytes = 0;
  for (const Part& part : parts) {
    for (const Frame& frame : part.frames) num_bytes += frame.size() * part.part_bytes;
  }
  const auto bytes = std::make_shared<std::vector<std::byte>>(num_bytes);
  std::byte* to = bytes->data();
  for (const Part& part : parts) {
    for (Frame& frame : part.frames) {
      for (std::byte*& from : frame) {
        std::memcpy(to, from, part.part_bytes);
        from = std::exchange(to, to + part.part_bytes);
      }
    }
  }
  copies = bytes;
}

}  // namespace folio
