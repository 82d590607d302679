#include "engine/runtime/segment_home.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Reads in one operation.
constexpr size_t kMaxRun = 32;
// Slices that one task reads at least where the system has them in memory: waking a thread takes as
// long as reading some. A read that takes longer than this waits for the disk, and then as many
// threads as there are may wait.
constexpr size_t kLeastTask = 8;
constexpr std::chrono::microseconds kLongestCopy(50);

// Made before it is needed: readers need no memory to say so.
const absl::Status& Damaged() {
  static const absl::Status* const status = new absl::Status(
      absl::DataLossError("a slice of the KV cache is not what was written to disk"));
  return *status;
}

}  // namespace

// One file of the home's own. What is in it is written by the writer and, a page being there, read
// by readers.
class SegmentHome::Segment final : public PageFile {
 public:
  Segment(SegmentHome* home, std::string path, uint64_t run)
      : run_(run), files_(home->files_), options_(home->options_), path_(std::move(path)) {
    checksums_.resize(static_cast<size_t>(options_.num_slices) * kPages);
    removal.push_back([files = files_, path = path_] { files->Remove(path).IgnoreError(); });
  }

  absl::Status Write(int page, const std::vector<const std::byte*>& slices) {
    FOLIO_RETURN_IF_ERROR(OpenFiles());
    for (int slice = 0; slice < options_.num_slices; ++slice) {
      const std::span<const std::byte> bytes(slices[slice], slice_bytes());
      checksums_[IndexOf(slice, page)] = Checksum(bytes);
      FOLIO_RETURN_IF_ERROR(output_->Write(Offset(slice, page), bytes));
    }
    ++num_written_;
    return absl::OkStatus();
  }

  // All pages are there, and none of them is written again.
  std::optional<SegmentData> TakeSegmentData() override {
    if (num_written_ < kPages || !IsLaidOutAsStored()) return std::nullopt;
    if (taken_.exchange(true)) return std::nullopt;
    return SegmentData{output_.get(), checksums_};
  }

  absl::Status Read(int slice, int page, std::span<std::byte* const> to) override {
    if (input_ == nullptr) return Damaged();
    for (; to.size() > kMaxRun; to = to.subspan(kMaxRun), page += kMaxRun) {
      FOLIO_RETURN_IF_ERROR(Read(slice, page, to.first(kMaxRun)));
    }
    std::array<StoredFile::Piece, kMaxRun> pieces;
    for (size_t n = 0; n < to.size(); ++n) pieces[n] = {to[n], slice_bytes()};
    FOLIO_RETURN_IF_ERROR(input_->Read(Offset(slice, page), std::span(pieces).first(to.size())));
    for (size_t n = 0; n < to.size(); ++n) {
      const uint64_t expected = checksums_[IndexOf(slice, page + static_cast<int>(n))];
      if (Checksum({to[n], slice_bytes()}) != expected) return Damaged();
    }
    return absl::OkStatus();
  }

  uint64_t run() const { return run_; }

  // For the engine's thread.
  int num_pages = 0;           // that have a place in it
  int num_live = 0;            // that were not freed
  TaskThreads::Tasks removal;  // of the file, made beforehand: to free a page needs no memory

 private:
  absl::Status OpenFiles() {
    if (output_ == nullptr) {
      FOLIO_ASSIGN_OR_RETURN(output_, files_->Create(path_));
    }
    if (input_ == nullptr) {
      FOLIO_ASSIGN_OR_RETURN(input_, files_->Open(path_));
    }
    return absl::OkStatus();
  }
  size_t slice_bytes() const { return static_cast<size_t>(options_.slice_bytes); }
  static size_t IndexOf(int slice, int page) { return static_cast<size_t>(slice) * kPages + page; }
  int64_t Offset(int slice, int page) const {
    return (int64_t{slice} * kPages + page) * options_.slice_bytes;
  }
  // Slices of whole blocks lie as in a segment of the store.
  bool IsLaidOutAsStored() const {
    const SegmentShape shape = {.slice_bytes = options_.slice_bytes, .num_pages = kPages};
    return SegmentWriter::DataOffset(shape, 0, 1) == Offset(0, 1);
  }

  const uint64_t run_;
  FileSystem* const files_;
  const SegmentHomeOptions options_;
  const std::string path_;
  std::unique_ptr<OutputFile> output_;
  std::unique_ptr<StoredFile> input_;
  std::vector<uint64_t> checksums_;   // [slice][page]
  std::atomic<int> num_written_ = 0;  // pages
  std::atomic<bool> taken_ = false;
};

// Shared with the readers, who may be late.
struct SegmentHome::ReadState {
  struct Read {
    PageFile* file;
    int slice;
    int page;
    std::byte* to;
    size_t number;  // in the order of whoever asked
    bool operator<(const Read& other) const {
      return std::tie(file, slice, page) < std::tie(other.file, other.slice, other.page);
    }
    bool follows(const Read& other) const {
      return file == other.file && slice == other.slice && page == other.page + 1;
    }
  };
  std::vector<Read> reads;                       // as they lie on disk
  std::vector<size_t> run_begins;                // of reads that are one operation
  std::atomic<size_t> next_run = 0;              // that no task has taken
  std::vector<std::shared_ptr<PageFile>> files;  // stay until they are read
  std::vector<absl::Status> statuses;            // by number
  Mutex mutex;
  CondVar changed;
  size_t num_left FOLIO_GUARDED_BY(mutex) = 0;  // tasks
  bool late FOLIO_GUARDED_BY(mutex) = false;
  // Of the home: orders that are late, and whether its last reads waited for the disk.
  std::shared_ptr<Shared> home;

  void EndTask() {
    MutexLock lock(&mutex);
    if (--num_left > 0) return;
    if (late) --home->num_late;
    changed.NotifyAll();
  }
};

class SegmentHome::Reads final : public PendingReads {
 public:
  Reads(std::shared_ptr<ReadState> state, std::chrono::milliseconds deadline)
      : state_(std::move(state)), given_(deadline), deadline_(Now() + deadline) {}

  bool Wait() override {
    MutexLock lock(&state_->mutex);
    const bool hangs = state_->home->num_late > 0;
    const auto end = hangs ? std::min(deadline_, Now() + given_ / 20) : deadline_;
    while (state_->num_left > 0) {
      if (!state_->changed.WaitUntil(&state_->mutex, end)) break;
    }
    if (state_->num_left == 0) return true;
    if (!std::exchange(state_->late, true)) ++state_->home->num_late;
    return false;
  }
  bool done() const override {
    MutexLock lock(&state_->mutex);
    return state_->num_left == 0;
  }
  const absl::Status& status(size_t read) const override { return state_->statuses[read]; }

 private:
  static std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }

  const std::shared_ptr<ReadState> state_;
  const std::chrono::milliseconds given_;
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

std::shared_ptr<SegmentHome::Segment> SegmentHome::SegmentFor(uint64_t run) {
  std::shared_ptr<Segment>& growing = growing_[run];
  if (growing == nullptr || growing->num_pages == kPages) {
    growing = std::make_shared<Segment>(this, absl::StrCat(directory_, "/", num_segments_++), run);
  }
  return growing;
}

void SegmentHome::StartWrite(FrameId frame, uint64_t run, std::vector<const std::byte*> slices) {
  // One that could not be written before has its place.
  Place& place = PlaceFor(frame);
  const bool is_new = place.file == nullptr;
  const std::shared_ptr<Segment> segment =
      is_new ? SegmentFor(run) : std::static_pointer_cast<Segment>(place.file);
  const int page = is_new ? segment->num_pages : place.page;
  absl::Cleanup forget = [&] {
    if (is_new) place = {};
  };
  if (is_new) place = {segment, page};
  {
    // The writer needs no memory to say that it is done.
    MutexLock lock(&mutex_);
    written_.reserve(static_cast<size_t>(writing_) + 1);
  }
  writer_.Post([this, frame, page, segment, slices = std::move(slices)] {
    absl::Status status = StatusOf([&] { return segment->Write(page, slices); });
    MutexLock lock(&mutex_);
    written_.push_back({frame, std::move(status)});
    changed_.NotifyAll();
  });
  ++writing_;
  if (is_new) {
    ++segment->num_pages;
    ++segment->num_live;
  }
  std::move(forget).Cancel();
}

void SegmentHome::TakeWritten(bool wait, std::vector<Written>* written) {
  const auto given = writes_hang_ ? options_.deadline / 20 : options_.deadline;
  const auto end = std::chrono::steady_clock::now() + given;
  MutexLock lock(&mutex_);
  while (wait && writing_ > 0 && written_.empty()) {
    if (!changed_.WaitUntil(&mutex_, end)) break;
  }
  if (wait || !written_.empty()) writes_hang_ = writing_ > 0 && written_.empty();
  written->assign(written_.begin(), written_.end());
  written_.clear();  // and keep its room
  writing_ -= std::ssize(*written);
}

// Tasks take runs of slices that follow each other until there are none: all end at the same time.
std::unique_ptr<PendingReads> SegmentHome::StartReads(std::vector<SliceRead> reads) {
  auto state = std::make_shared<ReadState>();
  const size_t count = reads.size();
  state->reads.reserve(count);
  for (const SliceRead& read : reads) {
    const Place& place = PlaceOf(read.frame);
    // Reads that follow each other are mostly of one file.
    if (state->files.empty() || state->files.back() != place.file) {
      state->files.push_back(place.file);
    }
    state->reads.push_back(
        {place.file.get(), read.slice, place.page, read.to, state->reads.size()});
  }
  std::sort(state->reads.begin(), state->reads.end());
  state->statuses.resize(count);
  for (size_t n = 0; n < count; ++n) {
    if (n > 0 && n - state->run_begins.back() < kMaxRun &&
        state->reads[n].follows(state->reads[n - 1])) {
      continue;
    }
    state->run_begins.push_back(n);
  }
  const size_t least_task = shared_->waits_for_disk ? 1 : kLeastTask;
  const size_t num_tasks =
      std::min({static_cast<size_t>(options_.num_readers), state->run_begins.size(),
                (count + least_task - 1) / least_task});
  {
    MutexLock lock(&state->mutex);
    state->num_left = num_tasks;
  }
  state->home = shared_;
  auto pending = std::make_unique<Reads>(state, options_.deadline);
  TaskThreads::Tasks tasks;
  for (size_t task = 0; task < num_tasks; ++task) {
    tasks.push_back([state] {
      const std::vector<size_t>& begins = state->run_begins;
      for (size_t run; (run = state->next_run.fetch_add(1)) < begins.size();) {
        const size_t end = run + 1 < begins.size() ? begins[run + 1] : state->reads.size();
        const auto start = std::chrono::steady_clock::now();
        ReadRun(state.get(), begins[run], end);
        state->home->waits_for_disk = std::chrono::steady_clock::now() - start > kLongestCopy;
      }
      state->EndTask();
    });
  }
  readers_.Post(&tasks);
  return pending;
}

void SegmentHome::ReadRun(ReadState* state, size_t begin, size_t end) {
  std::array<std::byte*, kMaxRun> to;
  for (size_t n = begin; n < end; ++n) to[n - begin] = state->reads[n].to;
  const ReadState::Read& first = state->reads[begin];
  absl::Status status = StatusOf(
      [&] { return first.file->Read(first.slice, first.page, std::span(to).first(end - begin)); });
  if (status.ok()) return;
  if (end - begin == 1) {
    state->statuses[first.number] = std::move(status);
    return;
  }
  // Those that can be read are.
  for (size_t n = begin; n < end; ++n) ReadRun(state, n, n + 1);
}

SegmentHome::Place& SegmentHome::PlaceFor(FrameId frame) {
  const auto at = static_cast<size_t>(frame);
  if (at >= places_.size()) places_.resize(at + 1);
  return places_[at];
}

void SegmentHome::Adopt(FrameId frame, Place place) {
  std::swap(PlaceFor(frame), place);
  if (auto* const segment = dynamic_cast<Segment*>(place.file.get())) FreePage(segment);
}

void SegmentHome::Free(FrameId frame) {
  const auto at = static_cast<size_t>(frame);
  if (at >= places_.size()) return;  // it was to be adopted, and there was no memory
  const Place place = std::exchange(places_[at], {});
  if (auto* const segment = dynamic_cast<Segment*>(place.file.get())) FreePage(segment);
}

void SegmentHome::FreePage(Segment* segment) {
  if (--segment->num_live > 0) return;
  // Behind what is still being written to it. What cannot be removed is, at the next start.
  writer_.Post(&segment->removal);
  const auto growing = growing_.find(segment->run());
  if (growing != growing_.end() && growing->second.get() == segment) growing_.erase(growing);
}

}  // namespace folio
