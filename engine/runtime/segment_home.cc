#include "engine/runtime/segment_home.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/status_macros.h"
#include "engine/store/checksum.h"

namespace folio {
namespace {

// Reads in one operation.
constexpr size_t kMaxRun = 32;
// Slices that one task reads at least: waking a thread takes as long as reading some.
constexpr size_t kLeastTask = 8;

// Made before it is needed: readers need no memory to say so.
const absl::Status& Damaged() {
  static const absl::Status* const status = new absl::Status(
      absl::DataLossError("a slice of the KV cache is not what was written to disk"));
  return *status;
}

}  // namespace

// Shared with the readers, who may be late.
struct SegmentHome::ReadState {
  std::vector<SliceRead> reads;
  std::vector<Place> places;           // [read]
  std::vector<size_t> order;           // of reads, as they lie on disk
  std::vector<absl::Status> statuses;  // [read]
  Mutex mutex;
  CondVar changed;
  size_t num_left FOLIO_GUARDED_BY(mutex) = 0;  // tasks
};

class SegmentHome::Reads final : public PendingReads {
 public:
  Reads(std::shared_ptr<ReadState> state, std::chrono::steady_clock::time_point deadline)
      : state_(std::move(state)), deadline_(deadline) {}

  bool Wait() override {
    MutexLock lock(&state_->mutex);
    while (state_->num_left > 0) {
      if (!state_->changed.WaitUntil(&state_->mutex, deadline_)) break;
    }
    return state_->num_left == 0;
  }
  bool done() const override {
    MutexLock lock(&state_->mutex);
    return state_->num_left == 0;
  }
  const absl::Status& status(size_t read) const override { return state_->statuses[read]; }

 private:
  const std::shared_ptr<ReadState> state_;
  const std::chrono::steady_clock::time_point deadline_;
};

absl::StatusOr<std::unique_ptr<SegmentHome>> SegmentHome::Create(
    FileSystem* files, const std::string& directory, const SegmentHomeOptions& options) {
  FOLIO_RETURN_IF_ERROR(files->Remove(directory));
  FOLIO_RETURN_IF_ERROR(files->MakeDirectory(directory));
  return std::unique_ptr<SegmentHome>(new SegmentHome(files, directory, options));
}

SegmentHome::SegmentHome(FileSystem* files, std::string directory,
                         const SegmentHomeOptions& options)
    : files_(files),
      directory_(std::move(directory)),
      options_(options),
      writer_(1),
      readers_(options.num_readers) {}

SegmentHome::~SegmentHome() {
  // What is left behind is removed at the next start.
  writer_.Post([this] { files_->Remove(directory_).IgnoreError(); });
}

SegmentHome::Place SegmentHome::NewPlace(uint64_t run) {
  std::shared_ptr<Segment>& growing = growing_[run];
  if (growing == nullptr || growing->num_pages == kPages) {
    auto segment = std::make_shared<Segment>();
    segment->path = absl::StrCat(directory_, "/", num_segments_++);
    segment->run = run;
    segment->checksums.resize(static_cast<size_t>(options_.num_slices) * kPages);
    segment->removal.push_back(
        [this, path = segment->path] { files_->Remove(path).IgnoreError(); });
    growing = std::move(segment);
  }
  ++growing->num_live;
  return {growing, growing->num_pages++};
}

void SegmentHome::StartWrite(FrameId frame, uint64_t run, std::vector<const std::byte*> slices) {
  // One that could not be written before has its place.
  const auto at = places_.find(frame);
  const bool is_new = at == places_.end();
  const Place place = is_new ? NewPlace(run) : at->second;
  absl::Cleanup forget = [&] {
    if (!is_new) return;
    places_.erase(frame);
    --place.segment->num_live;
  };
  if (is_new) places_[frame] = place;
  {
    // The writer needs no memory to say that it is done.
    MutexLock lock(&mutex_);
    written_.reserve(static_cast<size_t>(writing_) + 1);
  }
  writer_.Post([this, frame, place, slices = std::move(slices)] {
    absl::Status status = StatusOf([&] { return Write(place, slices); });
    MutexLock lock(&mutex_);
    written_.push_back({frame, std::move(status)});
    changed_.NotifyAll();
  });
  ++writing_;
  std::move(forget).Cancel();
}

absl::Status SegmentHome::OpenFiles(Segment* segment) {
  if (segment->output == nullptr) {
    FOLIO_ASSIGN_OR_RETURN(segment->output, files_->Create(segment->path));
  }
  if (segment->input == nullptr) {
    FOLIO_ASSIGN_OR_RETURN(segment->input, files_->Open(segment->path));
  }
  return absl::OkStatus();
}

absl::Status SegmentHome::Write(const Place& place, const std::vector<const std::byte*>& slices) {
  Segment* segment = place.segment.get();
  FOLIO_RETURN_IF_ERROR(OpenFiles(segment));
  for (int slice = 0; slice < options_.num_slices; ++slice) {
    const std::span<const std::byte> bytes(slices[slice],
                                           static_cast<size_t>(options_.slice_bytes));
    segment->checksums[static_cast<size_t>(slice) * kPages + place.page] = Checksum(bytes);
    FOLIO_RETURN_IF_ERROR(segment->output->Write(Offset(slice, place.page), bytes));
  }
  return absl::OkStatus();
}

void SegmentHome::TakeWritten(bool wait, std::vector<Written>* written) {
  MutexLock lock(&mutex_);
  while (wait && writing_ > 0 && written_.empty()) changed_.Wait(&mutex_);
  written->assign(written_.begin(), written_.end());
  written_.clear();  // and keep its room
  writing_ -= std::ssize(*written);
}

// A task reads a part of the order; it may hold several runs of slices that follow each other.
std::unique_ptr<PendingReads> SegmentHome::StartReads(std::vector<SliceRead> reads) {
  auto state = std::make_shared<ReadState>();
  const size_t count = reads.size();
  state->reads = std::move(reads);
  state->places.reserve(count);
  for (const SliceRead& read : state->reads) state->places.push_back(places_.at(read.frame));
  state->order.resize(count);
  std::iota(state->order.begin(), state->order.end(), size_t{0});
  const auto position = [&](size_t n) {
    const Place& place = state->places[n];
    return std::tuple(place.segment.get(), state->reads[n].slice, place.page);
  };
  std::sort(state->order.begin(), state->order.end(),
            [&](size_t a, size_t b) { return position(a) < position(b); });
  state->statuses.resize(count);
  const size_t readers = static_cast<size_t>(options_.num_readers);
  const size_t per_task = std::max(kLeastTask, (count + readers - 1) / readers);
  const size_t num_tasks = (count + per_task - 1) / per_task;
  {
    MutexLock lock(&state->mutex);
    state->num_left = num_tasks;
  }
  const auto deadline = std::chrono::steady_clock::now() + options_.read_deadline;
  auto pending = std::make_unique<Reads>(state, deadline);
  TaskThreads::Tasks tasks;
  for (size_t task = 0; task < num_tasks; ++task) {
    const size_t begin = task * per_task;
    tasks.push_back([this, state, begin, end = std::min(count, begin + per_task)] {
      ReadPart(state.get(), begin, end);
      MutexLock lock(&state->mutex);
      if (--state->num_left == 0) state->changed.NotifyAll();
    });
  }
  readers_.Post(&tasks);
  return pending;
}

void SegmentHome::ReadPart(ReadState* state, size_t begin, size_t end) const {
  const auto follows = [&](size_t a, size_t b) {
    const Place& first = state->places[a];
    const Place& second = state->places[b];
    return first.segment == second.segment && state->reads[a].slice == state->reads[b].slice &&
           first.page + 1 == second.page;
  };
  while (begin < end) {
    size_t after = begin + 1;
    while (after < end && after - begin < kMaxRun &&
           follows(state->order[after - 1], state->order[after])) {
      ++after;
    }
    ReadRun(state, begin, after);
    begin = after;
  }
}

void SegmentHome::ReadRun(ReadState* state, size_t begin, size_t end) const {
  const auto bytes = static_cast<size_t>(options_.slice_bytes);
  std::array<StoredFile::Piece, kMaxRun> pieces;
  for (size_t n = begin; n < end; ++n) {
    pieces[n - begin] = {state->reads[state->order[n]].to, bytes};
  }
  const size_t first = state->order[begin];
  const Place& place = state->places[first];
  const int slice = state->reads[first].slice;
  const absl::Status status = StatusOf([&] {
    return place.segment->input->Read(Offset(slice, place.page),
                                      std::span(pieces).first(end - begin));
  });
  for (size_t n = begin; n < end; ++n) {
    const size_t read = state->order[n];
    const auto at = static_cast<size_t>(slice) * kPages + state->places[read].page;
    const bool whole =
        status.ok() && Checksum({state->reads[read].to, bytes}) == place.segment->checksums[at];
    if (whole) continue;
    state->statuses[read] = status.ok() ? Damaged() : status;
  }
}

void SegmentHome::Free(FrameId frame) {
  const auto at = places_.find(frame);
  const std::shared_ptr<Segment> segment = std::move(at->second.segment);
  places_.erase(at);
  if (--segment->num_live > 0) return;
  const auto growing = growing_.find(segment->run);
  if (growing != growing_.end() && growing->second == segment) growing_.erase(growing);
  // Behind what is still being written to it. What cannot be removed is, at the next start.
  writer_.Post(&segment->removal);
}

}  // namespace folio
