#include "engine/store/posix_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/engine/test_model.h"

namespace folio {
namespace {

class PosixFilesTest : public ::testing::Test {
 protected:
  PosixFilesTest() : directory_(parent_.path() + "/kv") {
    auto files = OpenPosixFiles(directory_);
    EXPECT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }
  absl::Status Write(const std::string& path, std::string_view text) {
    auto file = files_->Create(path);
    if (!file.ok()) return file.status();
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    // The end first: files may have holes while they are written.
    if (absl::Status s = (*file)->Write(1, bytes.subspan(1)); !s.ok()) return s;
    if (absl::Status s = (*file)->Write(0, bytes.first(1)); !s.ok()) return s;
    return (*file)->Sync();
  }
  absl::StatusOr<std::string> Read(const std::string& path) {
    auto file = files_->Open(path);
    if (!file.ok()) return file.status();
    std::string text(static_cast<size_t>((*file)->size_bytes()), '\0');
    // Byte by byte: more pieces than the system takes at once.
    std::vector<StoredFile::Piece> pieces;
    for (char& byte : text) pieces.push_back({reinterpret_cast<std::byte*>(&byte), 1});
    if (absl::Status s = (*file)->Read(0, pieces); !s.ok()) return s;
    return text;
  }

  const ScratchDir parent_;
  const std::string directory_;
  std::unique_ptr<FileSystem> files_;
};

TEST_F(PosixFilesTest, FilesAreReadAsWritten) {
  std::string text;
  for (int n = 0; n < 3000; ++n) text += static_cast<char>('a' + n % 26);
  ASSERT_TRUE(files_->MakeDirectory("one").ok());
  ASSERT_TRUE(files_->MakeDirectory("one").ok());
  ASSERT_TRUE(Write("one/file", text).ok());
  EXPECT_EQ(*Read("one/file"), text);
  EXPECT_EQ(Write("one/file", text).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(files_->SyncDirectory("one").ok());
  EXPECT_TRUE(files_->SyncDirectory("").ok());
}

TEST_F(PosixFilesTest, AFileOfAnotherDirectoryGetsANameHereAndKeepsItWhenTheFirstOneGoes) {
  auto others = OpenPosixFiles(parent_.path() + "/others");
  ASSERT_TRUE(others.ok()) << others.status();
  auto file = (*others)->Create("file");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string_view text = "0123456789";
  ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(text.data(), text.size()))).ok());
  ASSERT_TRUE(files_->MakeDirectory("one").ok());
  const absl::Status linked = files_->Link(**file, "one/file");
  ASSERT_TRUE(linked.ok()) << linked;
  ASSERT_TRUE((*others)->Remove("file").ok());
  EXPECT_EQ(*Read("one/file"), text);
  EXPECT_EQ(files_->Link(**file, "one/file").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(files_->Link(**file, "two/file").code(), absl::StatusCode::kNotFound);
}

TEST_F(PosixFilesTest, ReadingBehindTheEndIsDataLoss) {
  ASSERT_TRUE(Write("file", "0123456789").ok());
  const auto file = files_->Open("file");
  ASSERT_TRUE(file.ok());
  std::byte to[20];
  const StoredFile::Piece pieces[] = {{to, 5}, {to + 5, 6}};
  EXPECT_EQ((*file)->Read(0, pieces).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE((*file)->Read(0, {pieces, 1}).ok());
}

// Large reads of whole blocks go past the system's cache, where the file system can.
TEST_F(PosixFilesTest, LargeReadsHaveTheBytesOfTheFileCachedOrNot) {
  constexpr size_t kBlock = 4096, kBlocks = 200;
  std::string text;
  for (size_t n = 0; text.size() < kBlocks * kBlock + 100; ++n) text += std::to_string(n * 7919);
  ASSERT_TRUE(Write("file", text).ok());
  const auto file = files_->Open("file");
  ASSERT_TRUE(file.ok());
  struct Block {
    alignas(kBlock) std::array<std::byte, kBlock> bytes;
  };
  for (const bool cached : {true, false}) {
    for (const size_t first : {size_t{0}, size_t{3}}) {
      if (!cached) {
        const int fd = open((directory_ + "/file").c_str(), O_RDONLY);
        ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        close(fd);
      }
      const size_t count = kBlocks - first;
      const auto blocks = std::make_unique<Block[]>(count);
      // In another order in memory than in the file.
      std::vector<StoredFile::Piece> pieces;
      for (size_t n = 0; n < count; ++n) {
        pieces.push_back({blocks[count - 1 - n].bytes.data(), kBlock});
      }
      const absl::Status read = (*file)->Read(static_cast<int64_t>(first * kBlock), pieces);
      ASSERT_TRUE(read.ok()) << read;
      for (size_t n = 0; n < count; ++n) {
        ASSERT_EQ(std::memcmp(pieces[n].to, &text[(first + n) * kBlock], kBlock), 0)
            << "block " << first + n;
      }
      // One block more than there is.
      pieces.push_back({blocks[0].bytes.data(), kBlock});
      EXPECT_EQ((*file)->Read(static_cast<int64_t>(first * kBlock), pieces).code(),
                absl::StatusCode::kDataLoss);
    }
  }
}

TEST_F(PosixFilesTest, NamesAreListedRenamedAndRemoved) {
  ASSERT_TRUE(files_->MakeDirectory("one").ok());
  ASSERT_TRUE(files_->MakeDirectory("one/deep").ok());
  ASSERT_TRUE(Write("one/deep/file", "text").ok());
  ASSERT_TRUE(Write("one/b", "text").ok());
  const auto entries = files_->List("one");
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(entries->at(0).name, "b");
  EXPECT_FALSE(entries->at(0).is_directory);
  EXPECT_EQ(entries->at(1).name, "deep");
  EXPECT_TRUE(entries->at(1).is_directory);
  EXPECT_TRUE(files_->Rename("one/deep", "two").ok());
  EXPECT_EQ(*Read("two/file"), "text");
  EXPECT_TRUE(files_->Remove("two").ok());
  EXPECT_EQ(files_->List("two").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(files_->Remove("two").ok());
  EXPECT_TRUE(files_->Remove("no/such").ok());
  EXPECT_EQ(files_->Open("one/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PosixFilesTest, AFileIsReopenedCutToWhatCounts) {
  ASSERT_TRUE(Write("file", "0123456789").ok());
  EXPECT_EQ(files_->Reopen("file", 11).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(files_->Reopen("none", 0).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(files_->MakeDirectory("directory").ok());
  EXPECT_EQ(files_->Reopen("directory", 0).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::symlink("file", (directory_ + "/link").c_str()), 0);
  EXPECT_EQ(files_->Reopen("link", 0).status().code(), absl::StatusCode::kFailedPrecondition);
  {
    auto file = files_->Reopen("file", 4);
    ASSERT_TRUE(file.ok()) << file.status();
    const char more[] = {'x', 'y'};
    ASSERT_TRUE((*file)->Write(4, std::as_bytes(std::span(more))).ok());
  }
  EXPECT_EQ(*Read("file"), "0123xy");
  const auto entries = files_->List("");
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->at(1), (DirectoryEntry{"file", false, 6}));
}

TEST_F(PosixFilesTest, PathsDoNotLeaveTheDirectory) {
  const auto refused = absl::StatusCode::kInvalidArgument;
  for (const char* path : {"", "/", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "."}) {
    EXPECT_EQ(files_->Create(path).status().code(), refused) << path;
    EXPECT_EQ(files_->Open(path).status().code(), refused) << path;
    EXPECT_EQ(files_->Remove(path).code(), refused) << path;
  }
  EXPECT_EQ(files_->Open(std::string("a\0b", 3)).status().code(), refused);
}

TEST_F(PosixFilesTest, NoLinkIsFollowed) {
  const std::string outside = parent_.path() + "/outside";
  std::filesystem::create_directory(outside);
  std::ofstream(outside + "/secret") << "secret";
  ASSERT_EQ(::symlink(outside.c_str(), (directory_ + "/link").c_str()), 0);
  ASSERT_EQ(::symlink((outside + "/secret").c_str(), (directory_ + "/file").c_str()), 0);
  EXPECT_FALSE(files_->Open("link/secret").ok());
  EXPECT_FALSE(files_->Create("link/new").ok());
  EXPECT_FALSE(files_->List("link").ok());
  EXPECT_FALSE(files_->Open("file").ok());
  EXPECT_EQ(files_->Create("file").status().code(), absl::StatusCode::kAlreadyExists);
  // Removed is the link, not what it points to.
  EXPECT_TRUE(files_->Remove("link").ok());
  EXPECT_TRUE(files_->Remove("file").ok());
  EXPECT_TRUE(std::filesystem::exists(outside + "/secret"));
}

TEST_F(PosixFilesTest, WhatIsNoFileIsNotOpened) {
  ASSERT_TRUE(files_->MakeDirectory("directory").ok());
  EXPECT_EQ(files_->Open("directory").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::mkfifo((directory_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(files_->Open("fifo").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PosixFilesTest, OneDirectoryHasOneOwner) {
  EXPECT_EQ(OpenPosixFiles(directory_).status().code(), absl::StatusCode::kFailedPrecondition);
  files_.reset();
  EXPECT_TRUE(OpenPosixFiles(directory_).ok());
}

TEST_F(PosixFilesTest, ADirectoryThatCannotBeUsedIsRefused) {
  EXPECT_EQ(OpenPosixFiles(directory_ + "/no/such").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(directory_ + "/plain") << "x";
  EXPECT_EQ(OpenPosixFiles(directory_ + "/plain").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace folio
