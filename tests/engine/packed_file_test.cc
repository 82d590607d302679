// Files of packed weights that are damaged, or not for the model or backend that reads them.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/model/packed_weights.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/pack_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/failing_backend.h"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Small ones, so that every matrix of a test has several.
constexpr int64_t kPartBytes = 1000;

absl::Status Pack(const std::string& checkpoint, const std::string& to, const std::string& dtype,
                  int group = 0) {
  return PackModel({.checkpoint_dir = checkpoint,
                    .weight_dtype = dtype,
                    .weight_group = group,
                    .num_threads = 2,
                    .part_bytes = kPartBytes},
                   to);
}

// A tiny Llama, packed as int4, whose file tests damage.
class PackedFile : public testing::Test {
 protected:
  PackedFile() {
    WriteTinyModel({.hidden = 48, .layers = 1}, checkpoint());
    const absl::Status status = Pack(checkpoint(), dir(), "int4", 64);
    EXPECT_TRUE(status.ok()) << status;
    bytes_ = ReadAll(path());
  }
  std::string checkpoint() const { return scratch_.Path("checkpoint"); }
  std::string dir() const { return scratch_.Path("packed"); }
  std::string path() const { return dir() + "/" + kPackedFile; }

  void Write(const std::string& bytes) const {
    scratch_.Write(std::string("packed/") + kPackedFile, bytes);
  }

  absl::Status Load() const {
    const ModelConfig config = *LoadModelConfig(dir());
    const auto weights = PackedWeights::Open(dir());
    if (!weights.ok()) return weights.status();
    if (const absl::Status status = weights->Check(config); !status.ok()) return status;
    return weights->Load(config, backend_.get()).status();
  }

  absl::Status LoadWith(const std::string& dtype, int group) const {
    EngineOptions options;
    options.model_dir = dir();
    options.weight_dtype = dtype;
    options.weight_group = group;
    options.num_threads = 1;
    options.kv_bytes = int64_t{1} << 24;
    return LoadModel(options, false).status();
  }

  // Writes the file with another header; the data stays.
  void EditHeader(const std::function<void(Json*)>& edit) const {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    auto header = Json::parse(bytes_.substr(8, header_bytes));
    edit(&header);
    const std::string text = header.dump();
    header_bytes = text.size();
    std::string edited(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    Write(edited + text + bytes_.substr(8 + DataOffset()));
  }

  // The same with another manifest, whose checksum is right.
  void EditManifest(const std::function<void(Json*)>& edit) const {
    EditHeader([&](Json* header) {
      Json& metadata = (*header)["__metadata__"];
      Json manifest = Json::parse(metadata["folio_manifest"].get<std::string>());
      edit(&manifest);
      const std::string text = manifest.dump();
      const uint64_t checksum = Checksum(std::as_bytes(std::span(text)));
      metadata["folio_manifest"] = text;
      metadata["folio_manifest_xxh3"] = absl::StrCat(absl::Hex(checksum, absl::kZeroPad16));
    });
  }

  void ExpectRefused(absl::StatusCode code, const std::string& message) const {
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr(path()));
    EXPECT_THAT(status.message(), HasSubstr("folio-make-model --quantise"));
  }

  // Of the header, after its length.
  size_t DataOffset() const {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    return header_bytes;
  }

  const ScratchDir scratch_;
  const std::unique_ptr<Backend> backend_ = NewTestBackend();
  std::string bytes_;
};

TEST_F(PackedFile, AnyFlippedByteIsNoticed) {
  ASSERT_TRUE(Load().ok()) << Load();
  for (size_t at = 0; at < bytes_.size(); at += at < 600 ? 1 : 61) {
    std::string damaged = bytes_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    Write(damaged);
    ASSERT_FALSE(Load().ok()) << "byte " << at;
  }
}

TEST_F(PackedFile, AnyCutIsNoticed) {
  for (size_t size = 0; size < bytes_.size(); size += 97) {
    Write(bytes_.substr(0, size));
    ExpectRefused(absl::StatusCode::kInvalidArgument, "");
  }
  Write(bytes_ + "x");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "but the file holds");
}

TEST_F(PackedFile, ACutWhileItIsReadIsDataLoss) {
  const ModelConfig config = *LoadModelConfig(dir());
  const auto weights = PackedWeights::Open(dir());
  ASSERT_TRUE(weights.ok() && weights->Check(config).ok());
  std::filesystem::resize_file(path(), bytes_.size() - 2000);
  const absl::Status status = weights->Load(config, backend_.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(path(), " ends at byte")));
}

TEST_F(PackedFile, ADamagedMatrixIsNamed) {
  std::string damaged = bytes_;
  damaged[damaged.size() - 1] = static_cast<char>(damaged.back() + 1);
  Write(damaged);
  ExpectRefused(absl::StatusCode::kDataLoss, "of \"head.weight\" are not what was written");
}

TEST_F(PackedFile, WhatItSaysOfItselfMustBePossible) {
  struct Edit {
    std::function<void(Json*)> edit;
    std::string message;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  };
  const Edit edits[] = {
      {[](Json* m) { (*m)["version"] = 2; }, "has version 2", absl::StatusCode::kUnimplemented},
      {[](Json* m) { m->erase("version"); }, "\"version\" is missing"},
      {[](Json* m) { m->erase("layout"); }, "\"layout\" is missing"},
      {[](Json* m) { (*m)["layout"] = 7; }, "\"layout\" is 7"},
      {[](Json* m) { (*m)["weight_dtype"] = "int3"; }, "weight_dtype is 'int3'"},
      {[](Json* m) { (*m)["weight_group"] = 48; }, "weight_group is 48"},
      {[](Json* m) { (*m)["weight_group"] = 1 << 20; }, "\"weight_group\" is 1048576"},
      {[](Json* m) { (*m)["dtype"] = "int32"; }, "\"dtype\" is \"int32\""},
      {[](Json* m) { (*m)["part_bytes"] = 0; }, "\"part_bytes\" is 0"},
      {[](Json* m) { (*m)["part_bytes"] = uint64_t{1} << 60; }, "\"part_bytes\" is"},
      {[](Json* m) { (*m)["part_bytes"] = 4000; }, "checksums of"},
      {[](Json* m) { (*m)["sources"] = 1; }, "\"sources\" must be an object"},
      {[](Json* m) { (*m)["sources"]["lm_head.weight"] = 1; }, "\"sources\" must hold objects"},
      {[](Json* m) {
         (*m)["sources"]["lm_head.weight"]["shape"] = {-1, 4};
       },
       "\"shape\" must be"},
      {[](Json* m) { (*m)["sources"]["lm_head.weight"]["xxh3_128"] = {1}; }, "two integers"},
      {[](Json* m) { (*m)["sources"].erase("lm_head.weight"); },
       "without a tensor \"lm_head.weight\" of shape [64, 48]"},
      {[](Json* m) { (*m)["checksums"].erase("head.weight"); }, "checksums of \"head.weight\""},
      {[](Json* m) { (*m)["checksums"]["head.weight"].push_back(1); }, "of \"head.weight\""},
      {[](Json* m) { (*m)["checksums"]["head.weight"] = "none"; }, "list of integers"},
      // Matrices of another size than such weights have.
      {[](Json* m) { (*m)["weight_dtype"] = "int8"; }, "a packed matrix of 128 x 48 has"},
      {[](Json* m) { (*m)["weight_group"] = 32; }, "a packed matrix of 128 x 48 has"},
      {[](Json* m) { (*m)["dtype"] = "bf16"; }, "\"embedding.weight\": a packed matrix of 64 x 48"},
  };
  for (const Edit& edit : edits) {
    EditManifest(edit.edit);
    ExpectRefused(edit.code, edit.message);
  }
}

TEST_F(PackedFile, ItsTensorsMustBeThoseOfTheModel) {
  const auto move = [](Json* header, const char* from, const char* to) {
    (*header)[to] = (*header)[from];
    header->erase(from);
  };
  EditHeader([&](Json* header) { move(header, "layers.0.qkv.weight", "layers.0.qvk.weight"); });
  ExpectRefused(absl::StatusCode::kInvalidArgument, "has no \"layers.0.qkv.weight\"");
  EditHeader([&](Json* header) { (*header)["layers.0.qkv.weight"]["dtype"] = "I8"; });
  ExpectRefused(absl::StatusCode::kInvalidArgument, "bytes of I8, expected U8");
  EditHeader([&](Json* header) {
    (*header)["final_norm.weight"]["dtype"] = "U8";
    (*header)["final_norm.weight"]["shape"] = {4 * 48};
  });
  ExpectRefused(absl::StatusCode::kInvalidArgument, "192 bytes of U8, expected 48 numbers of F32");
  EditHeader([&](Json* header) {
    const Json end = (*header)["head.weight"]["data_offsets"][1];
    (*header)["more"] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {end, end}}};
  });
  ExpectRefused(absl::StatusCode::kInvalidArgument, "tensors, config.json asks for");
  EditHeader([&](Json* header) { header->erase("__metadata__"); });
  ExpectRefused(absl::StatusCode::kInvalidArgument, "has no manifest");
  EditHeader([&](Json* header) { (*header)["__metadata__"]["folio_manifest"] = "{}"; });
  ExpectRefused(absl::StatusCode::kDataLoss, "its manifest is damaged");
}

TEST_F(PackedFile, AnotherConfigIsRefused) {
  const std::string config_path = dir() + "/config.json";
  const Json config = Json::parse(ReadAll(config_path));
  const auto with = [&](const char* key, const Json& value) {
    Json edited = config;
    edited[key] = value;
    scratch_.Write("packed/config.json", edited.dump());
  };
  with("vocab_size", 65);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "\"model.embed_tokens.weight\" of shape [65, ");
  with("num_hidden_layers", 2);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "config.json asks for");
  with("tie_word_embeddings", true);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "tensors, config.json asks for");
  // The same shapes, made of the checkpoint in another way.
  with("partial_rotary_factor", 0.5);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "was packed for a model of LlamaForCausalLM");
  // What does not change weights may change.
  with("rope_theta", 500000.0);
  EXPECT_TRUE(Load().ok()) << Load();
}

TEST_F(PackedFile, OtherNumbersThanItsOwnAreRefused) {
  EXPECT_TRUE(LoadWith("auto", 0).ok()) << LoadWith("auto", 0);
  EXPECT_TRUE(LoadWith("auto", 64).ok());
  EXPECT_TRUE(LoadWith("int4", 0).ok());
  EXPECT_TRUE(LoadWith("int4", 64).ok());
  for (const char* dtype : {"int8", "bf16", "fp32"}) {
    const absl::Status status = LoadWith(dtype, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("weight_dtype is '", dtype, "', but ")));
    EXPECT_THAT(status.message(),
                HasSubstr("holds int4/64 weights; leave it out, or give --model"));
  }
  for (const char* dtype : {"auto", "int4"}) {
    const absl::Status status = LoadWith(dtype, 32);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("weight_group is 32, but "));
  }
  EXPECT_THAT(LoadWith("int5", 0).message(), HasSubstr("weight_dtype is 'int5', must be"));
  EXPECT_THAT(LoadWith("auto", 48).message(), HasSubstr("weight_group is 48, must be"));
}

TEST_F(PackedFile, BesideACheckpointItIsRefused) {
  std::filesystem::copy_file(checkpoint() + "/model.safetensors", dir() + "/model.safetensors");
  const absl::Status status = LoadWith("auto", 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has a checkpoint and folio-packed.safetensors"));
}

// A backend with matrices of its own, as a GPU has.
class OtherBackend final : public FailingBackend {
 public:
  explicit OtherBackend(std::string layout)
      : FailingBackend(NewTestBackend(), &kNever), layout_(std::move(layout)) {}
  std::string name() const override { return "other"; }
  std::string packed_layout() const override { return layout_; }

 private:
  inline static const std::atomic<bool> kNever{false};
  const std::string layout_;
};

TEST_F(PackedFile, ABackendWithoutItsLayoutRefusesIt) {
  const ModelConfig config = *LoadModelConfig(dir());
  const auto weights = PackedWeights::Open(dir());
  ASSERT_TRUE(weights.ok());
  OtherBackend none("");
  const absl::Status status = weights->Load(config, &none).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("packed as cpu-panels-2, which the backend other"));
  EXPECT_THAT(status.message(), HasSubstr("take --device cpu"));
  OtherBackend newer("cpu-panels-3");
  EXPECT_THAT(weights->Load(config, &newer).status().message(), HasSubstr("make it again"));
  EXPECT_EQ(WritePackedWeights(scratch_.path(), config, none, weights->manifest(), nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PackedFile, MakingOneSaysWhatIsWrong) {
  const std::string to = scratch_.Path("new");
  const auto refused = [&](const absl::Status& status, absl::StatusCode code, const char* message) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
  };
  refused(Pack(checkpoint(), to, "int3"), absl::StatusCode::kInvalidArgument,
          "--quantise is 'int3', must be int8, int4 or bf16");
  refused(Pack(checkpoint(), to, "int4", 48), absl::StatusCode::kInvalidArgument,
          "weight_group is 48");
  refused(Pack(dir(), to, "int8"), absl::StatusCode::kInvalidArgument, "is packed already");
  refused(Pack(scratch_.Path("nowhere"), scratch_.Path("x"), "int8"), absl::StatusCode::kNotFound,
          "config.json");
  refused(Pack(checkpoint(), dir(), "int8"), absl::StatusCode::kAlreadyExists, "is not empty");
}

}  // namespace
}  // namespace folio::test
