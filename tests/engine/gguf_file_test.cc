#include "engine/model/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/model/gguf_blocks.h"
#include "engine/model/safetensors_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/gguf_builder.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

using testing::HasSubstr;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ80 = 8;

absl::StatusOr<GgufHeader> Parse(const std::string& bytes) {
  return ParseGgufHeader(bytes, bytes.size());
}

void ExpectRefused(const std::string& bytes, absl::StatusCode code, const std::string& part) {
  const absl::Status status = Parse(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

void ExpectInvalid(const std::string& bytes, const std::string& part) {
  ExpectRefused(bytes, absl::StatusCode::kInvalidArgument, part);
}

std::string Good() {
  return GgufBuilder()
      .Add("general.architecture", "llama")
      .Add("llama.block_count", uint32_t{2})
      .Add("llama.scale", 0.5f)
      .Add("on", true)
      .Add("words", std::vector<std::string>{"a", "", "\xff"})
      .Add("ids", std::vector<int32_t>{-1, 7})
      .Tensor("a", {2, 3}, kF32, 0)
      .Tensor("b", {64}, kQ80, 32)
      .Build(32 + 68);
}

TEST(GgufHeader, ValuesAndTensors) {
  const auto header = Parse(Good());
  ASSERT_TRUE(header.ok()) << header.status();
  const Json& metadata = header->metadata;
  EXPECT_EQ(metadata["general.architecture"], "llama");
  EXPECT_EQ(metadata["llama.block_count"], 2);
  EXPECT_EQ(metadata["llama.scale"], 0.5);
  EXPECT_EQ(metadata["on"], true);
  EXPECT_EQ(metadata["words"], (std::vector<std::string>{"a", "", "\xff"}));
  EXPECT_EQ(metadata["ids"], (std::vector<int>{-1, 7}));
  EXPECT_EQ(header->tensors.at("a").shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(header->tensors.at("b").type, kQ80);
  EXPECT_EQ(header->tensors.at("b").begin, 32u);
  EXPECT_EQ(header->data_begin % 32, 0u);
  EXPECT_EQ(header->data_begin, Good().size() - 100);
}

TEST(GgufHeader, EveryPrefixIsRefused) {
  const std::string good = Good();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(Parse(good.substr(0, size)).ok()) << size;
  }
}

TEST(GgufHeader, OtherVersions) {
  GgufBuilder builder;
  builder.version = 1;
  ExpectRefused(builder.Build(), absl::StatusCode::kUnimplemented, "version 1");
  builder.version = 3u << 24;
  ExpectRefused(builder.Build(), absl::StatusCode::kUnimplemented, "big endian");
  builder.version = 2;
  EXPECT_TRUE(Parse(builder.Build()).ok());
  builder.magic = "GGML";
  ExpectInvalid(builder.Build(), "is no GGUF file");
}

TEST(GgufHeader, ASplitModelIsToldHowToBeJoined) {
  ExpectRefused(GgufBuilder().Add("split.count", uint32_t{3}).Build(),
                absl::StatusCode::kUnimplemented, "one of 3 files of a model; join them");
  EXPECT_TRUE(Parse(GgufBuilder().Add("split.count", uint32_t{1}).Build()).ok());
}

TEST(GgufHeader, CountsThatTheFileDoesNotHave) {
  GgufBuilder builder;
  builder.num_pairs = UINT64_MAX;
  ExpectInvalid(builder.Build(), "18446744073709551615 keys, limits 131072 and 65536");
  builder.num_pairs = 1 << 16;
  ExpectInvalid(builder.Build(), "cut short");
  builder.num_pairs = 0;
  builder.num_tensors = (1 << 17) + 1;
  ExpectInvalid(builder.Build(), "131073 tensors");
  builder.num_tensors = 1 << 17;
  ExpectInvalid(builder.Build(), "name must have 1 to");
  const auto list = [](uint32_t type, uint64_t count) {
    return GgufBuilder()
        .Value("x", GgufBuilder::kArray, GgufBuilder::Bytes(type) + GgufBuilder::Bytes(count))
        .Build(64);
  };
  ExpectInvalid(list(GgufBuilder::kString, UINT64_MAX), "\"x\": is a list of");
  ExpectInvalid(list(GgufBuilder::kBool, 1 << 20), "\"x\": is a list of");
  ExpectInvalid(list(99, 1), "unknown type 99");
  ExpectRefused(list(GgufBuilder::kArray, 1), absl::StatusCode::kUnimplemented, "list of lists");
  ExpectInvalid(
      GgufBuilder().Value("x", GgufBuilder::kString, GgufBuilder::Bytes(UINT64_MAX - 7)).Build(64),
      "cut short");
  ExpectInvalid(GgufBuilder().Value("x", 13, "").Build(64), "unknown type 13");
}

TEST(GgufHeader, NamesAreGivenOnce) {
  ExpectInvalid(GgufBuilder().Add("x", 1u).Add("x", 1u).Build(), "\"x\": is given twice");
  ExpectInvalid(GgufBuilder().Tensor("t", {1}, kF32, 0).Tensor("t", {1}, kF32, 0).Build(4),
                "tensor \"t\": is given twice");
}

TEST(GgufHeader, DimsAndPlaces) {
  const auto with = [](std::initializer_list<uint64_t> dims, uint32_t type, uint64_t begin) {
    return GgufBuilder().Tensor("t", dims, type, begin).Build(64);
  };
  ExpectInvalid(with({}, kF32, 0), "has 0 dims");
  ExpectInvalid(with({1, 1, 1, 1, 1}, kF32, 0), "has 5 dims");
  ExpectInvalid(with({0}, kF32, 0), "has a dim of 0");
  ExpectInvalid(with({UINT64_MAX}, kF32, 0), "dims must be positive");
  ExpectInvalid(with({1ull << 32, 1ull << 31}, kF32, 0), "below 2^63");
  ExpectInvalid(with({1ull << 31, 1ull << 31}, kF32, 0), "needs");
  ExpectInvalid(with({17}, kF32, 0), "needs 17 blocks of 4 bytes");
  EXPECT_TRUE(Parse(with({16}, kF32, 0)).ok());
  ExpectInvalid(with({16}, kF32, 1), "needs");
  ExpectInvalid(with({1}, kF32, UINT64_MAX), "needs");
  ExpectInvalid(with({33}, kQ80, 0), "Q8_0 has blocks of 32");
  ExpectInvalid(with({16, 2}, kQ80, 0), "rows of 16 numbers");
}

TEST(GgufHeader, Alignment) {
  GgufBuilder builder;
  builder.Add("general.alignment", uint32_t{64}).Tensor("t", {1}, kF32, 0);
  builder.alignment = 64;
  EXPECT_EQ(Parse(builder.Build(4))->data_begin % 64, 0u);
  for (const uint32_t bad : {0u, 1u << 21, UINT32_MAX}) {
    ExpectInvalid(GgufBuilder().Add("general.alignment", bad).Build(), "general.alignment");
  }
}

TEST(GgufBlocks, AreWhatTheDefinitionSays) {
  const auto golden = SafetensorsFile::Open(GoldenDir() + "/gguf/blocks.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  int num_types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = FindGgufType(id);
    if (type == nullptr) continue;
    ++num_types;
    const std::string name = type->name;
    const SafetensorsEntry& entry = golden->entries().at(name + ".blocks");
    std::vector<std::byte> blocks(entry.end - entry.begin);
    ASSERT_TRUE(golden->ReadBytes(entry, 0, blocks).ok());
    const OwnedTensor values = *golden->Tensor(name + ".values");
    ASSERT_EQ(blocks.size() % type->block_bytes, 0u);
    const auto count = static_cast<int64_t>(blocks.size()) / type->block_bytes;
    ASSERT_EQ(count * type->block_numbers, values.view.num_elements()) << name;
    std::vector<float> out(values.view.num_elements());
    type->decode(blocks.data(), count, out.data());
    EXPECT_EQ(std::memcmp(out.data(), values.view.data, values.view.num_bytes()), 0) << name;
  }
  EXPECT_EQ(num_types, 8);
}

TEST(GgufBlocks, OtherTypesHaveTheirNames) {
  EXPECT_EQ(FindGgufType(10), nullptr);
  EXPECT_EQ(GgufTypeName(10), "Q2_K");
  EXPECT_EQ(GgufTypeName(77), "type 77");
  EXPECT_EQ(KnownGgufTypes(), "F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K");
}

TEST(GgufFile, NamesThePathAndReadsPieceByPiece) {
  const ScratchDir dir;
  dir.Write("bad.gguf", "GGUF");
  EXPECT_THAT(std::string(GgufFile::Open(dir.Path("bad.gguf")).status().message()),
              HasSubstr("bad.gguf: a value after byte 4"));
  // More than one piece of a read, and the second tensor behind the first.
  constexpr uint64_t kNumbers = 300'000;
  std::string bytes = GgufBuilder()
                          .Tensor("first", {8}, kF32, 0)
                          .Tensor("many", {kNumbers}, kF32, 32)
                          .Build(32 + 4 * kNumbers);
  const float last = 2.5f;
  std::memcpy(bytes.data() + bytes.size() - 4, &last, 4);
  dir.Write("good.gguf", bytes);
  const auto file = GgufFile::Open(dir.Path("good.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  float other;
  std::memset(&other, 1, sizeof(other));
  TaskThreads helpers(2);
  for (const int num_helpers : {0, 2}) {
    const auto tensor = file->Tensor("many", &helpers, num_helpers);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    const auto* values = static_cast<const float*>(tensor->view.data);
    EXPECT_EQ(std::count(values, values + kNumbers, other), kNumbers - 1);
    EXPECT_EQ(values[kNumbers - 1], last);
  }
  std::filesystem::resize_file(dir.Path("good.gguf"), bytes.size() - 1);
  EXPECT_TRUE(absl::IsDataLoss(file->Tensor("many", &helpers, 2).status()));
}

}  // namespace
}  // namespace folio
