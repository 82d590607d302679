// Manifests, and the logs whose end they hold.

#include "engine/store/manifest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "engine/base/checksum.h"
#include "engine/store/byte_codec.h"
#include "tests/engine/memory_files.h"

namespace folio {
namespace {

constexpr auto kLost = absl::StatusCode::kDataLoss;

Manifest FullManifest() {
  Manifest manifest;
  manifest.id = "a/b";
  manifest.name = "Ezekiel";
  manifest.upload_token = "secret";
  manifest.attention = "full() plain()";
  manifest.incarnation = 7;
  manifest.created_us = 1;
  manifest.updated_us = 2;
  manifest.state = StoredState::kComplete;
  manifest.attributes = {
      .labels = {{"team", "law"}, {"", ""}}, .last_used_us = 3, .ttl_us = 4, .pinned = true};
  manifest.tokenizer = {5};
  manifest.text_bytes = 6000;
  manifest.logs = {.tokens = {1000, 4100, 11}, .offsets = {1000, 1100, 12}};
  const SegmentShape shape = {.kind = SegmentKind::kSummaries,
                              .num_slices = 4,
                              .slice_bytes = 4096,
                              .first_page = 64,
                              .num_pages = 2};
  manifest.renditions.resize(2);
  manifest.renditions[0].number = 3;
  manifest.renditions[0].model = {8};
  manifest.renditions[0].attention = "long_heads";
  manifest.renditions[0].num_tokens = 999;
  manifest.renditions[0].segments = {{4, {}, {9}}, {5, shape, {10}}};
  manifest.renditions[0].segments[0].shape = shape;
  manifest.renditions[1].number = 6;
  manifest.prompt_format = "chatml-0123";
  manifest.lead_bytes = 140;
  return manifest;
}

std::string Encoded(const Manifest& manifest) {
  const auto bytes = EncodeManifest(manifest);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : "";
}

// With a checksum that is right.
std::string Signed(std::string bytes) {
  const size_t body = bytes.size() - 8;
  const uint64_t checksum = Checksum(std::as_bytes(std::span(bytes.data(), body)));
  std::memcpy(bytes.data() + body, &checksum, 8);
  return bytes;
}

TEST(Manifest, IsReadAsItWasWritten) {
  Manifest small;
  small.id = "x";
  for (const Manifest& manifest : {small, FullManifest()}) {
    const auto read = DecodeManifest(Encoded(manifest));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, manifest);
  }
  // Of the renditions 2 x (4 slices x 2 pages x 4 KiB + 8 checksums + footer), and the logs.
  EXPECT_EQ(FullManifest().data_bytes(), 2 * (8 * 4096 + 64 + 88) + 4100 + 1100);
}

TEST(Manifest, IsRefusedWithAnyByteFlippedOrCutOff) {
  const std::string bytes = Encoded(FullManifest());
  for (size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_EQ(DecodeManifest(bytes.substr(0, at)).status().code(), kLost);
    for (const int mask : {1, 128, 255}) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ mask);
      EXPECT_EQ(DecodeManifest(flipped).status().code(), kLost) << at;
    }
  }
  EXPECT_EQ(DecodeManifest(bytes + "x").status().code(), kLost);
}

// Version 1 ends before the prompt format.
TEST(Manifest, OfTheVersionBeforeIsRead) {
  Manifest manifest = FullManifest();
  manifest.prompt_format.clear();
  manifest.lead_bytes = 0;
  std::string bytes = Encoded(manifest);
  bytes.erase(bytes.size() - 8 - 12, 12);
  bytes[8] = 1;
  const auto length = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 12, &length, sizeof(length));
  const auto read = DecodeManifest(Signed(bytes));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, manifest);
}

TEST(Manifest, OfAnotherVersionIsRefused) {
  std::string bytes = Encoded(FullManifest());
  ++bytes[8];
  const absl::Status status = DecodeManifest(Signed(bytes)).status();
  EXPECT_EQ(status.code(), kLost);
  EXPECT_NE(status.message().find("another version"), std::string::npos) << status;
}

// Every four bytes set to something large, with a checksum that is right: it is refused, or it is a
// manifest that says so again. Under a sanitizer it would show if memory were taken for it.
TEST(Manifest, WithAbsurdNumbersTakesNoMemory) {
  const std::string bytes = Encoded(FullManifest());
  int num_refused = 0;
  for (size_t at = 16; at + 12 <= bytes.size(); ++at) {
    for (const uint32_t value : {0xffffffffu, 0x7fffffffu, 0x40000000u}) {
      std::string changed = bytes;
      std::memcpy(changed.data() + at, &value, 4);
      changed = Signed(changed);
      const auto read = DecodeManifest(changed);
      num_refused += read.ok() ? 0 : 1;
      if (read.ok()) {
        EXPECT_EQ(Encoded(*read), changed);
      }
    }
  }
  EXPECT_GT(num_refused, 300);
}

TEST(Manifest, ThatSaysWhatCannotBeIsNotWritten) {
  const auto refused = [](const std::function<void(Manifest*)>& change) {
    Manifest manifest = FullManifest();
    change(&manifest);
    return EncodeManifest(manifest).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Manifest*) {}));
  EXPECT_TRUE(refused([](Manifest* m) { m->id = ""; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->id = "a\n"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->name = std::string(100'000, 'x'); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->text_bytes = -1; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->lead_bytes = -1; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->logs.offsets.num_items = 999; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->logs.tokens.num_bytes = 3999; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->attributes.ttl_us = -1; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->renditions[0].num_tokens = 1001; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->renditions[1].number = 3; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->renditions[0].segments[1].file = 4; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->renditions[0].segments[1].shape.num_pages = 65; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->state = static_cast<StoredState>(2); }));
}

// ---- Logs ----

std::vector<int32_t> Ids(size_t count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), -5);
  return ids;
}
// Mostly ascending, as offsets are; some are not, and some are extreme.
std::vector<int64_t> Offsets(size_t count) {
  std::mt19937_64 random(3);
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (size_t n = 0; n < count; ++n) {
    offset += static_cast<int64_t>(random() % 9);
    offsets.push_back(random() % 50 == 0 ? static_cast<int64_t>(random()) : offset);
  }
  return offsets;
}

absl::StatusOr<TokenLogEnds> Write(FileSystem* files, size_t count, size_t at_once,
                                   TokenLogEnds ends = {}) {
  auto log = TokenLog::Open(files, "d", ends);
  if (!log.ok()) return log.status();
  const auto ids = Ids(count);
  const auto offsets = Offsets(count);
  for (auto at = static_cast<size_t>(ends.tokens.num_items); at < count; at += at_once) {
    const size_t num = std::min(at_once, count - at);
    const int64_t before = log->ends().tokens.num_bytes + log->ends().offsets.num_bytes;
    const auto some = std::span(offsets).subspan(at, num);
    if (absl::Status s = log->Append(std::span(ids).subspan(at, num), some); !s.ok()) return s;
    EXPECT_EQ(log->ends().tokens.num_bytes + log->ends().offsets.num_bytes - before,
              TokenLog::BytesOf(some));
  }
  if (absl::Status s = log->Sync(); !s.ok()) return s;
  return log->ends();
}

TEST(TokenLog, IsReadAsItWasWritten) {
  for (const size_t at_once : {1, 7, 100, 1000}) {
    test::MemoryFiles files;
    ASSERT_TRUE(files.MakeDirectory("d").ok());
    const auto ends = Write(&files, 1000, at_once);
    ASSERT_TRUE(ends.ok()) << ends.status();
    EXPECT_EQ(ends->tokens.num_items, 1000);
    EXPECT_EQ(*ReadTokenIds(&files, "d", ends->tokens), Ids(1000));
    EXPECT_EQ(*ReadTokenOffsets(&files, "d", ends->offsets), Offsets(1000));
  }
}

TEST(TokenLog, GoesOnAtItsEndWhateverLiesBehind) {
  test::MemoryFiles files;
  ASSERT_TRUE(files.MakeDirectory("d").ok());
  const auto early = Write(&files, 300, 100);
  ASSERT_TRUE(early.ok());
  ASSERT_TRUE(Write(&files, 900, 200, *early).ok());  // never committed
  const auto ends = Write(&files, 1000, 70, *early);
  ASSERT_TRUE(ends.ok());
  EXPECT_EQ(*ReadTokenIds(&files, "d", ends->tokens), Ids(1000));
  EXPECT_EQ(*ReadTokenIds(&files, "d", early->tokens), Ids(300));
  EXPECT_EQ(*ReadTokenOffsets(&files, "d", ends->offsets), Offsets(1000));
}

TEST(TokenLog, IsRefusedWithAnyByteFlippedOrCutOff) {
  test::MemoryFiles files;
  ASSERT_TRUE(files.MakeDirectory("d").ok());
  const auto ends = Write(&files, 100, 30);
  ASSERT_TRUE(ends.ok());
  const auto tokens = [&] { return ReadTokenIds(&files, "d", ends->tokens).status().code(); };
  const auto offsets = [&] { return ReadTokenOffsets(&files, "d", ends->offsets).status().code(); };
  for (const std::string name : {"tokens", "offsets"}) {
    std::string& content = *files.content("d/" + name);
    const std::string whole = content;
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int mask : {1, 128, 255}) {
        content[at] = static_cast<char>(whole[at] ^ mask);
        EXPECT_EQ(name == "tokens" ? tokens() : offsets(), kLost) << at;
      }
      content = whole.substr(0, at);
      EXPECT_EQ(name == "tokens" ? tokens() : offsets(), kLost) << at;
      content = whole;
    }
  }
  EXPECT_EQ(tokens(), absl::StatusCode::kOk);
  EXPECT_EQ(offsets(), absl::StatusCode::kOk);
}

// Whole and undamaged, but not what the manifest speaks of.
TEST(TokenLog, OfAnotherTextIsRefused) {
  test::MemoryFiles files;
  ASSERT_TRUE(files.MakeDirectory("d").ok());
  const auto one = Write(&files, 100, 30);
  const std::string content = *files.content("d/tokens");
  auto log = TokenLog::Open(&files, "d", {});
  ASSERT_TRUE(log.ok());
  const std::vector<int32_t> ids(100, 1);
  for (size_t at = 0; at < 100; at += 25) {
    const std::vector<int64_t> zeros(25);
    ASSERT_TRUE(log->Append(std::span(ids).subspan(at, 25), zeros).ok());
  }
  ASSERT_EQ(log->ends().tokens.num_bytes, one->tokens.num_bytes);
  EXPECT_EQ(ReadTokenIds(&files, "d", one->tokens).status().code(), kLost);
  EXPECT_EQ(*ReadTokenIds(&files, "d", log->ends().tokens), ids);
}

TEST(ByteReader, ReadsNothingBehindTheEnd) {
  ByteWriter out;
  out.Number(uint32_t{7});
  out.String("abc");
  ByteReader in(out.bytes());
  EXPECT_EQ(in.Number<uint32_t>(), 7u);
  EXPECT_EQ(in.String(3), "abc");
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(in.left_bytes(), 0u);
  EXPECT_EQ(in.Number<uint8_t>(), 0);
  EXPECT_FALSE(in.ok());
  ByteReader limited(out.bytes());
  limited.Number<uint32_t>();
  EXPECT_EQ(limited.String(2), "");
  EXPECT_FALSE(limited.ok());
}

}  // namespace
}  // namespace folio
