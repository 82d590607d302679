// Files of a model that change while they are read.
#include "engine/model/model_files.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"
#include "tests/scratch_dir.h"

namespace folio::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

void Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class ModelFilesTest : public ::testing::Test {
 protected:
  ModelFilesTest() { std::filesystem::copy(TestData("../models/folio-tiny"), dir_.Path("model")); }
  std::filesystem::path Path(const std::string& name) const {
    return std::filesystem::path(dir_.Path("model")) / name;
  }
  std::string ChangedBy(const std::function<void()>& change) const {
    const ModelFiles files({dir_.Path("model")});
    EXPECT_EQ(files.Changed(), "");
    change();
    return files.Changed();
  }
  // What becomes of an engine whose files change after it has begun to load them.
  absl::Status LoadWhile(const std::function<void()>& change) const {
    EngineOptions options;
    options.model_dir = dir_.Path("model");
    options.num_threads = 1;
    options.kv_bytes = int64_t{16} << 20;
    options.device = "cuda";
    options.make_cuda = [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
      change();
      return CreateCpuBackend(CpuBackendOptions());
    };
    return Engine::Create(options).status();
  }

  const ScratchDir dir_;
};

TEST_F(ModelFilesTest, WhatIsWrittenReplacedRemovedOrNewIsNoticed) {
  EXPECT_THAT(ChangedBy([&] { std::ofstream(Path("config.json"), std::ios::app) << " "; }),
              EndsWith("config.json"));
  EXPECT_THAT(ChangedBy([&] {
                std::filesystem::copy(Path("model.safetensors"), Path("copy"));
                std::filesystem::rename(Path("copy"), Path("model.safetensors"));
              }),
              EndsWith("model.safetensors"));
  EXPECT_THAT(ChangedBy([&] { std::filesystem::resize_file(Path("model.safetensors"), 100); }),
              EndsWith("model.safetensors"));
  EXPECT_THAT(ChangedBy([&] { std::filesystem::remove(Path("config.json")); }),
              EndsWith("config.json"));
  EXPECT_THAT(ChangedBy([&] { Write(Path("generation_config.json"), "{}"); }),
              EndsWith("generation_config.json"));
  EXPECT_EQ(ChangedBy([&] { Write(Path("server.log"), "a line"); }), "");
}

TEST_F(ModelFilesTest, AModelThatChangesWhileItIsLoadedIsNotServed) {
  EXPECT_TRUE(LoadWhile([] {}).ok());
  const absl::Status rewritten = LoadWhile([&] {
    std::ofstream(Path("config.json"), std::ios::app) << "\n";  // all of it is read after that
  });
  EXPECT_EQ(rewritten.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(rewritten.message(), HasSubstr("config.json was changed while the model was read"));
  const absl::Status cut =
      LoadWhile([&] { std::filesystem::resize_file(Path("model.safetensors"), 1000); });
  EXPECT_EQ(cut.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(cut.message(), HasSubstr("model.safetensors was changed while the model was read"));
  EXPECT_THAT(cut.message(), HasSubstr("; then: "));
}

}  // namespace
}  // namespace folio::test
