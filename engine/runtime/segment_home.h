#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/task_threads.h"
#include "engine/kv/page_home.h"
#include "engine/store/file_system.h"

namespace folio {

struct SegmentHomeOptions {
  int num_slices = 0;  // of a page
  int64_t slice_bytes = 0;
  // Reads at the same time: as many as keep a disk busy.
  int num_readers = 8;
  // After it a read is given up on.
  std::chrono::milliseconds read_deadline = std::chrono::seconds(10);
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

 private:
  // One file. What is in it is written by the writer and, a page being there, read by readers.
  struct Segment {
    std::string path;
    uint64_t run = 0;
    int num_pages = 0;  // that have a place in it
    int num_live = 0;   // that were not freed
    std::unique_ptr<OutputFile> output;
    std::unique_ptr<StoredFile> input;
    std::vector<uint64_t> checksums;  // [slice][page]
    TaskThreads::Tasks removal;  // of the file, made beforehand: to free a page needs no memory
  };
  struct Place {
    std::shared_ptr<Segment> segment;
    int page = 0;
  };
  struct ReadState;
  class Reads;

  SegmentHome(FileSystem* files, std::string directory, const SegmentHomeOptions& options);

  Place NewPlace(uint64_t run);
  // On the writer's thread.
  absl::Status Write(const Place& place, const std::vector<const std::byte*>& slices);
  absl::Status OpenFiles(Segment* segment);
  // On a reader's thread: a part of the order, and reads of it that follow each other on disk.
  void ReadPart(ReadState* state, size_t begin, size_t end) const;
  void ReadRun(ReadState* state, size_t begin, size_t end) const;
  int64_t Offset(int slice, int page) const {
    return (int64_t{slice} * kPages + page) * options_.slice_bytes;
  }

  FileSystem* const files_;
  const std::string directory_;
  const SegmentHomeOptions options_;
  int64_t num_segments_ = 0;  // ever made
  std::unordered_map<FrameId, Place> places_;
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> growing_;  // by run
  int64_t writing_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Written> written_ FOLIO_GUARDED_BY(mutex_);
  // Last: they end before what they work on.
  TaskThreads writer_;
  TaskThreads readers_;
};

}  // namespace folio
