#include "engine/store/segment_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers lie in files as in memory");

constexpr int64_t kBlock = 4096;
constexpr size_t kGatherBytes = size_t{1} << 20;
constexpr char kMagic[8] = {'F', 'O', 'L', 'I', 'O', 'S', 'E', 'G'};
// Beyond them a footer is nonsense: 1024 layers of 1024 KV heads, 64 MiB of a slice.
constexpr int kMaxSlices = 1 << 20;
constexpr int64_t kMaxSliceBytes = int64_t{64} << 20;
constexpr int64_t kMaxFirstPage = int64_t{1} << 40;

// As it lies in the file.
struct Footer {
  char magic[8];
  uint32_t version;
  uint32_t kind;
  uint32_t num_slices;
  uint32_t num_pages;
  uint64_t slice_bytes;
  uint64_t first_page;
  ContentKey key;
  uint64_t index_checksum;
  uint64_t footer_checksum;  // of everything before
};
static_assert(sizeof(Footer) == 88 && offsetof(Footer, footer_checksum) == 80);

int64_t RoundedUp(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

size_t IndexOf(const SegmentShape& shape, int slice, int page) {
  return static_cast<size_t>(slice) * static_cast<size_t>(shape.num_pages) +
         static_cast<size_t>(page);
}
int64_t IndexOffset(const SegmentShape& shape) {
  return SegmentWriter::DataOffset(shape, shape.num_slices, 0);
}
int64_t IndexBytes(const SegmentShape& shape) {
  return int64_t{shape.num_slices} * shape.num_pages * static_cast<int64_t>(sizeof(uint64_t));
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Footer MakeFooter(const ContentKey& key, const SegmentShape& shape, uint64_t index_checksum) {
  Footer footer{};
  std::memcpy(footer.magic, kMagic, sizeof(kMagic));
  footer.version = kSegmentVersion;
  footer.kind = static_cast<uint32_t>(shape.kind);
  footer.num_slices = static_cast<uint32_t>(shape.num_slices);
  footer.num_pages = static_cast<uint32_t>(shape.num_pages);
  footer.slice_bytes = static_cast<uint64_t>(shape.slice_bytes);
  footer.first_page = static_cast<uint64_t>(shape.first_page);
  footer.key = key;
  footer.index_checksum = index_checksum;
  footer.footer_checksum = Checksum(BytesOf(footer).first(offsetof(Footer, footer_checksum)));
  return footer;
}

}  // namespace

absl::Status SegmentShape::Check() const {
  if (static_cast<int>(kind) < kNumSegmentKinds && num_slices >= 1 && num_slices <= kMaxSlices &&
      slice_bytes >= 1 && slice_bytes <= kMaxSliceBytes && first_page >= 0 &&
      first_page <= kMaxFirstPage && num_pages >= 1 && num_pages <= SegmentWriter::kMaxPages) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no segment has ", num_pages, " pages (1 to ", SegmentWriter::kMaxPages, ") from page ",
      first_page, " on, of ", num_slices, " slices (1 to ", kMaxSlices, ") of ", slice_bytes,
      " bytes (1 to ", kMaxSliceBytes, "), of kind ", static_cast<int>(kind)));
}

int64_t SegmentShape::FileBytes() const {
  return IndexOffset(*this) + IndexBytes(*this) + static_cast<int64_t>(sizeof(Footer));
}

absl::StatusOr<SegmentWriter> SegmentWriter::Create(FileSystem* files, const std::string& path,
                                                    const ContentKey& key,
                                                    const SegmentShape& shape) {
  FOLIO_RETURN_IF_ERROR(shape.Check());
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, files->Create(path));
  return SegmentWriter(std::move(file), key, shape);
}

absl::StatusOr<SegmentWriter> SegmentWriter::Link(FileSystem* files, const std::string& path,
                                                  const ContentKey& key, const SegmentShape& shape,
                                                  const SegmentData& data) {
  FOLIO_RETURN_IF_ERROR(shape.Check());
  if (static_cast<int64_t>(data.checksums.size()) != int64_t{shape.num_slices} * shape.num_pages) {
    return absl::InvalidArgumentError(absl::StrCat(data.checksums.size(), " checksums of ",
                                                   shape.num_slices, " slices of ", shape.num_pages,
                                                   " pages"));
  }
  FOLIO_RETURN_IF_ERROR(files->Link(*data.file, path));
  // Behind the last slice nothing needs to be written.
  const int64_t data_bytes =
      DataOffset(shape, shape.num_slices - 1, shape.num_pages - 1) + shape.slice_bytes;
  auto file = files->Reopen(path, data_bytes);
  if (!file.ok()) {
    files->Remove(path).IgnoreError();  // if it cannot be, no manifest names it
    return file.status();
  }
  SegmentWriter writer(*std::move(file), key, shape);
  writer.checksums_.assign(data.checksums.begin(), data.checksums.end());
  writer.written_.assign(writer.written_.size(), true);
  return writer;
}

int64_t SegmentWriter::DataOffset(const SegmentShape& shape, int slice, int page) {
  return (int64_t{slice} * shape.num_pages + page) * RoundedUp(shape.slice_bytes);
}

SegmentWriter::SegmentWriter(std::unique_ptr<OutputFile> file, const ContentKey& key,
                             const SegmentShape& shape)
    : file_(std::move(file)),
      key_(key),
      shape_(shape),
      checksums_(static_cast<size_t>(shape.num_slices) * static_cast<size_t>(shape.num_pages)),
      written_(static_cast<size_t>(shape.num_slices)) {}

absl::Status SegmentWriter::WriteSlice(int slice, std::span<const std::byte* const> pages) {
  if (slice < 0 || slice >= shape_.num_slices ||
      pages.size() != static_cast<size_t>(shape_.num_pages)) {
    return absl::InvalidArgumentError(absl::StrCat("slice ", slice, " of ", shape_.num_slices, ", ",
                                                   pages.size(), " pages of ", shape_.num_pages));
  }
  const auto block = static_cast<size_t>(RoundedUp(shape_.slice_bytes));
  const auto slice_bytes = static_cast<size_t>(shape_.slice_bytes);
  // As few writes as memory for them is small.
  const size_t batch = std::clamp<size_t>(kGatherBytes / block, 1, pages.size());
  gathered_.resize(batch * block);
  for (size_t first = 0; first < pages.size(); first += batch) {
    const size_t count = std::min(batch, pages.size() - first);
    for (size_t n = 0; n < count; ++n) {
      std::memcpy(gathered_.data() + n * block, pages[first + n], slice_bytes);
      checksums_[IndexOf(shape_, slice, static_cast<int>(first + n))] =
          Checksum({pages[first + n], slice_bytes});
    }
    FOLIO_RETURN_IF_ERROR(file_->Write(DataOffset(shape_, slice, static_cast<int>(first)),
                                       std::span(gathered_).first(count * block)));
  }
  written_[static_cast<size_t>(slice)] = true;
  return absl::OkStatus();
}

absl::Status SegmentWriter::Finish() {
  const auto missing = std::find(written_.begin(), written_.end(), false);
  if (missing != written_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("slice ", missing - written_.begin(), " of a segment was not written"));
  }
  const auto index = std::as_bytes(std::span(checksums_));
  FOLIO_RETURN_IF_ERROR(file_->Write(IndexOffset(shape_), index));
  const Footer footer = MakeFooter(key_, shape_, Checksum(index));
  FOLIO_RETURN_IF_ERROR(file_->Write(IndexOffset(shape_) + IndexBytes(shape_), BytesOf(footer)));
  return file_->Sync();
}

absl::StatusOr<Segment> Segment::Open(FileSystem* files, const std::string& path,
                                      const ContentKey& key, const SegmentShape& shape) {
  FOLIO_RETURN_IF_ERROR(shape.Check());
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<StoredFile> file, files->Open(path));
  const auto lost = [&path](const std::string& why) {
    return absl::DataLossError(absl::StrCat(path, " ", why));
  };
  if (file->size_bytes() != shape.FileBytes()) {
    return lost(absl::StrCat("has ", file->size_bytes(), " bytes instead of ", shape.FileBytes()));
  }
  Footer footer{};
  std::vector<uint64_t> checksums(static_cast<size_t>(IndexBytes(shape)) / sizeof(uint64_t));
  const auto index = std::as_writable_bytes(std::span(checksums));
  const StoredFile::Piece pieces[] = {{index.data(), index.size()},
                                      {reinterpret_cast<std::byte*>(&footer), sizeof(footer)}};
  FOLIO_RETURN_IF_ERROR(file->Read(IndexOffset(shape), pieces));
  const Footer expected = MakeFooter(key, shape, Checksum(index));
  if (std::memcmp(&footer, &expected, sizeof(footer)) != 0) {
    return lost("is not the segment that it should be: torn, or of another text, model or version");
  }
  return Segment(std::move(file), path, shape, std::move(checksums));
}

Segment::Segment(std::unique_ptr<StoredFile> file, std::string path, const SegmentShape& shape,
                 std::vector<uint64_t> checksums)
    : file_(std::move(file)),
      path_(std::move(path)),
      shape_(shape),
      checksums_(std::move(checksums)) {}

absl::Status Segment::Read(int slice, int page, std::span<std::byte* const> to) const {
  const auto num_pages =
      static_cast<int>(std::min(to.size(), size_t{SegmentWriter::kMaxPages + 1}));
  if (slice < 0 || slice >= shape_.num_slices || page < 0 || page > shape_.num_pages - num_pages) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " has no slice ", slice, " of pages ", page, " to ", page + num_pages));
  }
  // What lies between two slices is read too, so that all of it is one operation.
  const auto slice_bytes = static_cast<size_t>(shape_.slice_bytes);
  const size_t gap = static_cast<size_t>(RoundedUp(shape_.slice_bytes)) - slice_bytes;
  std::array<std::byte, kBlock> unused;
  std::array<StoredFile::Piece, 2 * SegmentWriter::kMaxPages> pieces;
  size_t num_pieces = 0;
  for (size_t n = 0; n < to.size(); ++n) {
    if (n > 0 && gap > 0) pieces[num_pieces++] = {unused.data(), gap};
    pieces[num_pieces++] = {to[n], slice_bytes};
  }
  FOLIO_RETURN_IF_ERROR(file_->Read(SegmentWriter::DataOffset(shape_, slice, page),
                                    std::span(pieces).first(num_pieces)));
  for (size_t n = 0; n < to.size(); ++n) {
    const size_t at = IndexOf(shape_, slice, page) + n;
    if (Checksum({to[n], slice_bytes}) == checksums_[at]) continue;
    return absl::DataLossError(absl::StrCat(path_, ": slice ", slice, " of page ",
                                            shape_.first_page + page + static_cast<int64_t>(n),
                                            " is not what was written"));
  }
  return absl::OkStatus();
}

}  // namespace folio
