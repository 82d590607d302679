#include <cstring>
#include <string>
#include <vector>

#include "engine/model/safetensors_file.h"
#include "engine/model/safetensors_writer.h"
#include "gtest/gtest.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

constexpr char kTwoTensors[] = R"({"__metadata__":{"format":"pt"},)"
                               R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                               R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )";

TEST(SafetensorsHeader, AcceptsTensorsInAnyOrder) {
  const auto entries = ParseSafetensorsHeader(kTwoTensors, 20);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(entries->at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entries->at("b").begin, 8u);
  EXPECT_EQ(entries->at("b").end, 20u);
}

TEST(SafetensorsHeader, AcceptsEmptyAndScalarTensors) {
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  const auto entries =
      ParseSafetensorsHeader(R"({"none":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)"
                             R"("one":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
                             8);
  EXPECT_TRUE(entries.ok()) << entries.status();
}

struct BadHeader {
  const char* header;
  uint64_t data_bytes;
  const char* message;  // must be part of the error
};

class LyingHeader : public testing::TestWithParam<BadHeader> {};

TEST_P(LyingHeader, IsRefused) {
  const absl::Status status =
      ParseSafetensorsHeader(GetParam().header, GetParam().data_bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.ToString().find(GetParam().message), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    All, LyingHeader,
    testing::Values(
        BadHeader{"", 0, "begin with {"}, BadHeader{" {}", 0, "begin with {"},
        BadHeader{"{", 0, "no valid JSON"}, BadHeader{"{}x", 0, "no valid JSON"},
        BadHeader{"{}", 1, "end at data byte 0, but the file holds 1"},
        BadHeader{kTwoTensors, 21, "end at data byte 20"}, BadHeader{kTwoTensors, 19, "cut short"},
        BadHeader{R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
        BadHeader{R"({"__metadata__":[]})", 0, "__metadata__"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  4, "given twice"},
        BadHeader{R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4,
                  "given twice"},
        BadHeader{R"({"a":7})", 0, "must be a JSON object"},
        BadHeader{R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "the name"},
        BadHeader{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "\"dtype\" must be a string"},
        BadHeader{R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
        BadHeader{R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown: F33"},
        BadHeader{R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "\"shape\" must be a list"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "not negative"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "integers"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                  "shape"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "overflows"},
        // 2^61 + 1 elements of 32 bits: the count of bits wraps around to 32.
        BadHeader{R"({"a":{"dtype":"F32","shape":[2305843009213693953],"data_offsets":[0,4]}})", 4,
                  "overflows"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "\"data_offsets\" must be a list"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "two integers"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "not negative"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "in order"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "need 64 bits"},
        BadHeader{R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4, "need 16 bits"},
        BadHeader{R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, "need 4 bits"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "(hole)"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8, "(overlap)"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  4, "(overlap)"}));

TEST(SafetensorsFile, ReadsWhatTheWriterWrote) {
  const ScratchDir dir;
  const std::string path = dir.Path("x.safetensors");
  auto writer = SafetensorsWriter::Create(path, DType::kF32, {{"w", {2, 2}}, {"v", {1}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float values[] = {1, 2, 3, 4, 5};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof(values));
  ASSERT_TRUE(writer->Append(bytes.substr(0, 7)).ok());
  ASSERT_TRUE(writer->Append(bytes.substr(7)).ok());
  ASSERT_TRUE(writer->Finish().ok());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tensor = file->Tensor("w");
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->view.rank, 2);
  EXPECT_EQ(tensor->view.num_bytes(), 16);
  EXPECT_EQ(std::memcmp(tensor->view.data, values, 16), 0);
  EXPECT_EQ(*static_cast<const float*>(file->Tensor("v")->view.data), 5.0f);
  EXPECT_EQ(file->Tensor("u").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsFile, WriterNoticesMissingData) {
  const ScratchDir dir;
  auto writer = SafetensorsWriter::Create(dir.Path("x"), DType::kF32, {{"w", {2}}});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SafetensorsFile, EveryTruncationIsRefused) {
  const ScratchDir dir;
  const std::string whole = SafetensorsBytes(kTwoTensors, 20);
  ASSERT_TRUE(SafetensorsFile::Open(dir.Write("whole", whole)).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto file = SafetensorsFile::Open(dir.Write("cut", whole.substr(0, length)));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST(SafetensorsFile, RefusesAHeaderLengthThatLies) {
  const ScratchDir dir;
  for (const uint64_t length : {uint64_t{1000}, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{0}}) {
    std::string bytes = SafetensorsBytes(kTwoTensors, 20);
    std::memcpy(bytes.data(), &length, sizeof(length));
    const absl::Status status = SafetensorsFile::Open(dir.Write("x", bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length << ": " << status;
  }
}

TEST(SafetensorsFile, ListsButRefusesWhatItCannotLoad) {
  const ScratchDir dir;
  const auto file = SafetensorsFile::Open(dir.Write(
      "x", SafetensorsBytes(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                            R"("f":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[8,12]}})",
                            12)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Contains("i"));
  EXPECT_EQ(file->Tensor("i").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(file->Tensor("f").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsFile, ReadsDataThatIsNotAligned) {
  const ScratchDir dir;
  const std::string header = R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  std::string bytes = SafetensorsBytes(header, 5);
  const float value = 2.5f;
  std::memcpy(bytes.data() + bytes.size() - sizeof(value), &value, sizeof(value));
  const auto file = SafetensorsFile::Open(dir.Write("x", bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*static_cast<const float*>(file->Tensor("f")->view.data), value);
}

TEST(InputFile, RefusesWhatIsNoRegularFile) {
  const ScratchDir dir;
  EXPECT_EQ(InputFile::Open(dir.Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(InputFile::Open(dir.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*ReadSmallFile(dir.Write("empty", ""), 10), "");
  EXPECT_EQ(ReadSmallFile(dir.Write("long", "12345678901"), 10).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(InputFile, MoveKeepsTheFile) {
  const ScratchDir dir;
  auto file = InputFile::Open(dir.Write("x", "bytes"));
  ASSERT_TRUE(file.ok());
  InputFile moved = *std::move(file);
  auto other = InputFile::Open(dir.Write("y", "other"));
  ASSERT_TRUE(other.ok());
  *other = std::move(moved);
  std::string text(3, ' ');
  ASSERT_TRUE(other->Read(2, 3, text.data()).ok());
  EXPECT_EQ(text, "tes");
  EXPECT_EQ(other->Read(3, 3, text.data()).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace folio
