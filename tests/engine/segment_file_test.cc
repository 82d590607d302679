#include "engine/store/segment_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/base/checksum.h"
#include "engine/store/posix_files.h"
#include "tests/engine/memory_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

const SegmentShape kShape = {.kind = SegmentKind::kPages,
                             .num_slices = 6,
                             .slice_bytes = 5000,
                             .first_page = 64,
                             .num_pages = 7};
const SegmentShape kSmall = {.kind = SegmentKind::kSummaries,
                             .num_slices = 2,
                             .slice_bytes = 300,
                             .first_page = 0,
                             .num_pages = 2};

ContentKey Key(uint8_t value) {
  ContentKey key{};
  key[31] = value;
  return key;
}

// Random bytes [page][slice].
std::vector<std::vector<std::string>> Pages(const SegmentShape& shape) {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::string>> pages(static_cast<size_t>(shape.num_pages));
  for (auto& page : pages) {
    for (int slice = 0; slice < shape.num_slices; ++slice) {
      std::string& bytes = page.emplace_back(static_cast<size_t>(shape.slice_bytes), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
    }
  }
  return pages;
}

absl::Status Write(FileSystem* files, const std::string& path, const SegmentShape& shape) {
  auto writer = SegmentWriter::Create(files, path, Key(1), shape);
  if (!writer.ok()) return writer.status();
  const auto pages = Pages(shape);
  for (int slice = shape.num_slices - 1; slice >= 0; --slice) {
    std::vector<const std::byte*> of_slice;
    for (const auto& page : pages) {
      of_slice.push_back(
          reinterpret_cast<const std::byte*>(page[static_cast<size_t>(slice)].data()));
    }
    if (absl::Status written = writer->WriteSlice(slice, of_slice); !written.ok()) return written;
  }
  return writer->Finish();
}

// All of it read in runs of `run` pages.
absl::StatusOr<std::vector<std::vector<std::string>>> ReadAll(const Segment& segment, int run) {
  const SegmentShape& shape = segment.shape();
  std::vector<std::vector<std::string>> pages(
      static_cast<size_t>(shape.num_pages),
      std::vector<std::string>(static_cast<size_t>(shape.num_slices),
                               std::string(static_cast<size_t>(shape.slice_bytes), '\0')));
  for (int slice = 0; slice < shape.num_slices; ++slice) {
    for (int page = 0; page < shape.num_pages; page += run) {
      std::vector<std::byte*> to;
      for (int n = page; n < std::min(page + run, shape.num_pages); ++n) {
        to.push_back(reinterpret_cast<std::byte*>(
            pages[static_cast<size_t>(n)][static_cast<size_t>(slice)].data()));
      }
      if (absl::Status read = segment.Read(slice, page, to); !read.ok()) return read;
    }
  }
  return pages;
}

// The data alone, in a file of another directory; its checksums.
std::vector<uint64_t> WriteData(OutputFile* file, const SegmentShape& shape) {
  const auto pages = Pages(shape);
  std::vector<uint64_t> checksums;
  for (int slice = 0; slice < shape.num_slices; ++slice) {
    for (int page = 0; page < shape.num_pages; ++page) {
      const std::string& bytes = pages[static_cast<size_t>(page)][static_cast<size_t>(slice)];
      const auto data = std::as_bytes(std::span(bytes));
      EXPECT_TRUE(file->Write(SegmentWriter::DataOffset(shape, slice, page), data).ok());
      checksums.push_back(Checksum(data));
    }
  }
  return checksums;
}

TEST(SegmentFile, IsMadeOfAFileThatHasItsDataAndIsTheSameAsIfItWereWritten) {
  test::MemoryFiles files;
  ASSERT_TRUE(Write(&files, "written", kShape).ok());
  test::MemoryFiles others;
  const auto file = *others.Create("data");
  const std::vector<uint64_t> checksums = WriteData(file.get(), kShape);
  auto writer = SegmentWriter::Link(&files, "linked", Key(1), kShape, {file.get(), checksums});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Finish().ok());
  ASSERT_TRUE(others.Remove("data").ok());
  EXPECT_EQ(*files.content("linked"), *files.content("written"));
}

TEST(SegmentFile, IsNotMadeOfAFileThatIsTooShortOrHasTooFewChecksums) {
  test::MemoryFiles files;
  const auto file = *files.Create("data");
  std::vector<uint64_t> checksums = WriteData(file.get(), kShape);
  const auto link = [&](int64_t cut) {
    files.content("data")->resize(files.content("data")->size() - static_cast<size_t>(cut));
    auto writer = SegmentWriter::Link(&files, "linked", Key(1), kShape, {file.get(), checksums});
    return writer.ok() ? writer->Finish() : writer.status();
  };
  checksums.pop_back();
  EXPECT_EQ(link(0).code(), absl::StatusCode::kInvalidArgument);
  checksums.push_back(1);
  EXPECT_EQ(link(1).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(files.content("linked"), nullptr);
}

TEST(SegmentFile, IsReadAsItWasWritten) {
  for (const int64_t slice_bytes : {1, 4095, 4096, 4097, 9000}) {
    test::MemoryFiles files;
    SegmentShape shape = kShape;
    shape.slice_bytes = slice_bytes;
    ASSERT_TRUE(Write(&files, "a", shape).ok());
    const auto segment = Segment::Open(&files, "a", Key(1), shape);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(segment->file_bytes(), shape.FileBytes());
    for (const int run : {1, 2, 7}) {
      const auto pages = ReadAll(*segment, run);
      ASSERT_TRUE(pages.ok()) << pages.status();
      EXPECT_EQ(*pages, Pages(shape));
    }
  }
}

TEST(SegmentFile, LiesOnDiskAsInMemory) {
  const ScratchDir directory;
  auto files = OpenPosixFiles(directory.path());
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_TRUE(Write(files->get(), "a", kShape).ok());
  const auto segment = Segment::Open(files->get(), "a", Key(1), kShape);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(*ReadAll(*segment, 3), Pages(kShape));
}

// A chunk of one head is one read.
TEST(SegmentFile, NeighbouringPagesAreOneRead) {
  test::MemoryFiles files;
  ASSERT_TRUE(Write(&files, "a", kShape).ok());
  const auto segment = Segment::Open(&files, "a", Key(1), kShape);
  ASSERT_TRUE(segment.ok());
  const int64_t before = files.num_operations();
  ASSERT_TRUE(ReadAll(*segment, kShape.num_pages).ok());
  EXPECT_EQ(files.num_operations() - before, kShape.num_slices);
}

TEST(SegmentFile, OfAnotherKeyOrShapeIsRefused) {
  test::MemoryFiles files;
  ASSERT_TRUE(Write(&files, "a", kShape).ok());
  const auto code = [&](uint8_t key, const SegmentShape& shape) {
    return Segment::Open(&files, "a", Key(key), shape).status().code();
  };
  EXPECT_EQ(code(1, kShape), absl::StatusCode::kOk);
  EXPECT_EQ(code(2, kShape), absl::StatusCode::kDataLoss);
  SegmentShape other = kShape;
  other.first_page = 0;
  EXPECT_EQ(code(1, other), absl::StatusCode::kDataLoss);
  other = kShape;
  std::swap(other.num_slices, other.num_pages);
  EXPECT_EQ(code(1, other), absl::StatusCode::kDataLoss);
  other = kShape;
  other.kind = SegmentKind::kSinks;
  EXPECT_EQ(code(1, other), absl::StatusCode::kDataLoss);
  other = kShape;
  other.num_pages = SegmentWriter::kMaxPages + 1;
  EXPECT_EQ(code(1, other), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Segment::Open(&files, "b", Key(1), kShape).status().code(),
            absl::StatusCode::kNotFound);
}

// Each byte of the file, flipped: padding aside, something notices.
TEST(SegmentFile, NoFlippedByteIsReadAsIfItWereRight) {
  test::MemoryFiles files;
  ASSERT_TRUE(Write(&files, "a", kSmall).ok());
  std::string& content = *files.content("a");
  const auto pages = Pages(kSmall);
  int noticed = 0;
  for (size_t at = 0; at < content.size(); ++at) {
    content[at] = static_cast<char>(content[at] ^ 1);
    const auto segment = Segment::Open(&files, "a", Key(1), kSmall);
    const auto read = segment.ok()
                          ? ReadAll(*segment, 2)
                          : absl::StatusOr<std::vector<std::vector<std::string>>>(segment.status());
    if (read.ok()) {
      EXPECT_EQ(*read, pages);
    } else {
      EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
      ++noticed;
    }
    content[at] = static_cast<char>(content[at] ^ 1);
  }
  // Data, index and footer.
  EXPECT_EQ(noticed, 88 + 4 * 300 + 4 * 8);
}

TEST(SegmentFile, CutAnywhereIsRefused) {
  test::MemoryFiles files;
  ASSERT_TRUE(Write(&files, "a", kSmall).ok());
  std::string& content = *files.content("a");
  const std::string whole = content;
  for (size_t size = 0; size < whole.size(); size += 111) {
    content = whole.substr(0, size);
    EXPECT_EQ(Segment::Open(&files, "a", Key(1), kSmall).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// Whatever operation fails, and whenever the power goes: a segment is whole, or it is none.
TEST(SegmentFile, ThatWasNotFinishedIsNone) {
  const auto operations = [] {
    test::MemoryFiles files;
    EXPECT_TRUE(Write(&files, "a", kShape).ok());
    return files.num_operations();
  }();
  for (int64_t failing = 1; failing <= operations; ++failing) {
    test::MemoryFiles files;
    int64_t count = 0;
    files.set_fault([&](const std::string&, const std::string&) {
      return ++count == failing ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
    });
    EXPECT_EQ(Write(&files, "a", kShape).code(), absl::StatusCode::kResourceExhausted);
    files.set_fault({});
    ASSERT_TRUE(files.SyncDirectory("").ok());
    files.LosePower();
    EXPECT_FALSE(Segment::Open(&files, "a", Key(1), kShape).ok()) << failing;
  }
}

TEST(SegmentFile, WithAMissingSliceIsNotFinished) {
  test::MemoryFiles files;
  auto writer = SegmentWriter::Create(&files, "a", Key(1), kShape);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SegmentFile, ReadsAndWritesOnlyWhatItHas) {
  test::MemoryFiles files;
  auto writer = SegmentWriter::Create(&files, "b", Key(1), kSmall);
  ASSERT_TRUE(writer.ok());
  const auto refused = absl::StatusCode::kInvalidArgument;
  const std::string bytes(300, 'x');
  const auto* slice = reinterpret_cast<const std::byte*>(bytes.data());
  const std::vector<const std::byte*> pages(3, slice);
  EXPECT_EQ(writer->WriteSlice(0, pages).code(), refused);
  EXPECT_EQ(writer->WriteSlice(2, std::span(pages).first(2)).code(), refused);
  EXPECT_EQ(writer->WriteSlice(-1, std::span(pages).first(2)).code(), refused);
  ASSERT_TRUE(Write(&files, "a", kSmall).ok());
  const auto segment = Segment::Open(&files, "a", Key(1), kSmall);
  ASSERT_TRUE(segment.ok());
  std::string out(300, '\0');
  const std::vector<std::byte*> to(1000, reinterpret_cast<std::byte*>(out.data()));
  const auto code = [&](int of, int page, size_t count) {
    return segment->Read(of, page, std::span(to).first(count)).code();
  };
  EXPECT_EQ(code(0, 1, 1), absl::StatusCode::kOk);
  EXPECT_EQ(code(0, 1, 2), refused);
  EXPECT_EQ(code(0, -1, 1), refused);
  EXPECT_EQ(code(2, 0, 1), refused);
  EXPECT_EQ(code(-1, 0, 1), refused);
  EXPECT_EQ(code(0, 0, 1000), refused);
}

}  // namespace
}  // namespace folio
