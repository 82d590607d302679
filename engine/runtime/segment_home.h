#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/task_threads.h"
#include "engine/kv/page_home.h"
#include "engine/runtime/page_file.h"
#include "engine/store/file_system.h"

namespace folio {

struct SegmentHomeOptions {
  int num_slices = 0;  // of a page
  int64_t slice_bytes = 0;
  // Reads at the same time: as many as keep a disk busy.
  int num_readers = 32;
  // After it a read is given up on, and pages that are being written are waited for no longer;
  // while such a one hangs, others after a twentieth of it: a step may have many, one after the
  // other.
  std::chrono::milliseconds deadline = std::chrono::seconds(10);
};

// Pages in files of a directory, kPages of one sequence in each as [slice][page], so that pages of
// one KV head that follow each other are one read. The files live as long as this process does:
// checksums are in memory, and nothing is synced.
class SegmentHome final : public PageHome {
 public:
  static constexpr int kPages = 64;

  // Empties the directory, or makes it. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<SegmentHome>> Create(FileSystem* files,
                                                             const std::string& directory,
                                                             const SegmentHomeOptions& options);
  ~SegmentHome() override;

  void StartWrite(FrameId frame, uint64_t run, std::vector<const std::byte*> slices) override;
  void TakeWritten(bool wait, std::vector<Written>* written) override;
  std::unique_ptr<PendingReads> StartReads(std::vector<SliceRead> reads) override;
  void Free(FrameId frame) override;

  // Where a page lies: in a file of the home's own, or in one that it was told of.
  struct Place {
    std::shared_ptr<PageFile> file;
    int page = 0;
  };
  // From now on the page is read from there. REQUIRES: it was written, or never begun to be.
  void Adopt(FrameId frame, Place place);
  // REQUIRES: it was written or adopted.
  const Place& PlaceOf(FrameId frame) const { return places_.at(static_cast<size_t>(frame)); }
  // Waits until nothing is being read or written; false if something is at `time`.
  bool AwaitIdle(std::chrono::steady_clock::time_point time) {
    return readers_.AwaitIdle(time) && writer_.AwaitIdle(time);
  }
  // Does something once what is being written has been.
  void AfterWrites(std::function<void()> task) { writer_.Post(std::move(task)); }

 private:
  class Segment;
  // With reads, which may end later than the home.
  struct Shared {
    std::atomic<int> num_late = 0;  // orders of reads that were given up on and have not ended
    std::atomic<bool> waits_for_disk = false;  // as the last read did
  };
  struct ReadState;
  class Reads;

  SegmentHome(FileSystem* files, std::string directory, const SegmentHomeOptions& options);

  // The segment that grows behind the pages of a run.
  std::shared_ptr<Segment> SegmentFor(uint64_t run);
  // Has room for the frame afterwards.
  Place& PlaceFor(FrameId frame);
  // A page of it is needed no more.
  void FreePage(Segment* segment);
  // On a reader's thread: reads that follow each other on disk.
  static void ReadRun(ReadState* state, size_t begin, size_t end);

  FileSystem* const files_;
  const std::string directory_;
  const SegmentHomeOptions options_;
  int64_t num_segments_ = 0;   // ever made
  std::vector<Place> places_;  // [frame]; without a file: it has none
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> growing_;  // by run
  int64_t writing_ = 0;
  bool writes_hang_ = false;  // none ended when they were waited for last
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();

  Mutex mutex_;
  CondVar changed_;
  std::vector<Written> written_ FOLIO_GUARDED_BY(mutex_);
  // Last: they end before what they work on.
  TaskThreads writer_;
  TaskThreads readers_;
};

}  // namespace folio
