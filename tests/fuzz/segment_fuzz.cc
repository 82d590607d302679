// Any bytes as the files of a rendition: a segment, and the logs of tokens. The first two bytes
// choose what they should be; what can be read is only ever what was asked for.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/store/segment_file.h"
#include "engine/store/token_log.h"

namespace {

// One file, whatever its path.
class OneFile final : public folio::FileSystem {
 public:
  explicit OneFile(std::string_view content) : content_(content) {}
  absl::StatusOr<std::unique_ptr<folio::StoredFile>> Open(const std::string&) override {
    return std::make_unique<File>(content_);
  }
  absl::StatusOr<std::unique_ptr<folio::OutputFile>> Create(const std::string&) override {
    return Refused();
  }
  absl::StatusOr<std::unique_ptr<folio::OutputFile>> Reopen(const std::string&, int64_t) override {
    return Refused();
  }
  absl::Status MakeDirectory(const std::string&) override { return Refused(); }
  absl::Status Rename(const std::string&, const std::string&) override { return Refused(); }
  absl::Status Remove(const std::string&) override { return Refused(); }
  absl::StatusOr<std::vector<folio::DirectoryEntry>> List(const std::string&) override {
    return Refused();
  }
  absl::Status SyncDirectory(const std::string&) override { return Refused(); }

 private:
  class File final : public folio::StoredFile {
   public:
    explicit File(std::string_view content) : content_(content) {}
    int64_t size_bytes() const override { return static_cast<int64_t>(content_.size()); }
    absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
      if (offset < 0 || offset > size_bytes()) return absl::DataLossError("ends");
      std::string_view left = content_.substr(static_cast<size_t>(offset));
      for (const Piece& piece : pieces) {
        if (piece.num_bytes > left.size()) return absl::DataLossError("ends");
        std::memcpy(piece.to, left.data(), piece.num_bytes);
        left.remove_prefix(piece.num_bytes);
      }
      return absl::OkStatus();
    }

   private:
    const std::string_view content_;
  };
  static absl::Status Refused() { return absl::UnimplementedError("only read"); }

  const std::string_view content_;
};

void ReadSegment(OneFile* files, uint8_t choice) {
  const folio::SegmentShape shape = {.kind = static_cast<folio::SegmentKind>(choice & 3),
                                     .num_slices = 1 + (choice >> 2 & 3),
                                     .slice_bytes = 8 << (choice >> 6),
                                     .first_page = 0,
                                     .num_pages = 1 + (choice >> 4 & 3)};
  const auto segment = folio::Segment::Open(files, "a", folio::ContentKey{1}, shape);
  if (!segment.ok()) return;
  std::vector<std::byte> bytes(static_cast<size_t>(shape.slice_bytes));
  std::array<std::byte*, 1> to = {bytes.data()};
  for (int slice = 0; slice < shape.num_slices; ++slice) {
    for (int page = 0; page < shape.num_pages; ++page) {
      segment->Read(slice, page, to).IgnoreError();
    }
  }
}

void ReadLogs(OneFile* files, size_t size, uint8_t num_items) {
  // The end as a manifest has it: the checksum of the last record lies at the end of the file.
  folio::LogEnd end = {.num_items = num_items, .num_bytes = static_cast<int64_t>(size)};
  if (size >= sizeof(end.checksum)) {
    const auto file = files->Open("a");
    const folio::StoredFile::Piece piece{reinterpret_cast<std::byte*>(&end.checksum),
                                         sizeof(end.checksum)};
    if (!(*file)->Read(static_cast<int64_t>(size - sizeof(end.checksum)), {&piece, 1}).ok())
      abort();
  }
  const auto ids = folio::ReadTokenIds(files, "d", end);
  if (ids.ok() && ids->size() != num_items) abort();
  const auto offsets = folio::ReadTokenOffsets(files, "d", end);
  if (offsets.ok() && offsets->size() != num_items) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 2, size - 2);
  OneFile files(content);
  ReadSegment(&files, data[0]);
  ReadLogs(&files, content.size(), data[1]);
  return 0;
}
