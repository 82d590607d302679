// Documents of a device that outlive the process: pages go to the disk and come from it through the
// host's memory, all else of their cache from and to the device.
#include "engine/backend/cuda/cuda_backend.h"
#include "tests/engine/stored_documents_fixture.h"

namespace folio::test {
namespace {

constexpr int kTokens = 215;  // an unfinished page and an unfinished chunk at the end

class StoredOnDevice : public StoredDocuments {
 protected:
  StoredOnDevice() {
    options_.device = "cuda";
    options_.make_cuda = [] { return CreateCudaBackend(0); };
    options_.kv_dir = dir_.path() + "/device";
    options_.kv_bytes = int64_t{14} << 20;
    options_.kv_host_bytes = int64_t{16} << 20;
    options_.step_tokens = 128;
    Restart();
  }

  DocumentInfo UploadShort(const std::string& id, const std::string& strategy) {
    const DocumentHandle handle = Open(id, strategy);
    std::vector<int32_t> tokens = TokensOf(3);
    tokens.resize(kTokens);
    EXPECT_TRUE(engine_->AppendToDocument(handle, tokens, 900).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    return WaitUntilSaved(id);
  }
};

TEST_F(StoredOnDevice, AnswersAfterARestartAreThoseBefore) {
  for (const char* strategy : {"long_heads", "full"}) {
    SCOPED_TRACE(strategy);
    const DocumentInfo saved = UploadShort(strategy, strategy);
    ASSERT_TRUE(saved.saved) << saved.save_error;
    EXPECT_GT(saved.host_kv_bytes, 0);
    EXPECT_EQ(saved.disk_kv_bytes, 0);
    const auto before = Ask(strategy);
    ASSERT_TRUE(before->completed().has_value()) << before->status();
    Restart();
    const auto after = Ask(strategy);
    ASSERT_TRUE(after->completed().has_value()) << after->status();
    EXPECT_EQ(after->text(), before->text());
    EXPECT_EQ(after->completed()->usage.cached_tokens, kTokens);
    EXPECT_GT(after->completed()->memory.slice_misses, 0);
    EXPECT_EQ(engine_->GetDocument(strategy)->host_kv_bytes, saved.host_kv_bytes);
  }
}

TEST_F(StoredOnDevice, WhatTheDiskHasDamagedIsComputedAgain) {
  ASSERT_TRUE(UploadShort("d", "long_heads").saved);
  const auto before = Ask("d");
  ASSERT_TRUE(before->completed().has_value()) << before->status();
  engine_.reset();
  for (const auto& segment : SegmentsOf("d")) DamageFile(segment.string());
  Restart();
  const auto after = Ask("d");
  ASSERT_TRUE(after->completed().has_value()) << after->status();
  EXPECT_EQ(after->text(), before->text());
}

TEST_F(StoredOnDevice, ADirectoryNeedsTheMemoryOfTheHost) {
  engine_.reset();
  options_.kv_host_bytes = 0;
  const absl::Status refused = Engine::Create(options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--kv-dir on a GPU needs --kv-host-bytes"), std::string::npos);
  options_.device = "cpu";
  options_.kv_host_bytes = 1 << 20;
  EXPECT_NE(Engine::Create(options_).status().message().find("--kv-host-bytes is for a GPU"),
            std::string::npos);
  // More than the host has: the sum is said before anything is taken.
  options_.device = "cuda";
  options_.kv_host_bytes = int64_t{1} << 50;
  const absl::Status too_much = Engine::Create(options_).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.message().find("lower --kv-host-bytes"), std::string::npos) << too_much;
}

}  // namespace
}  // namespace folio::test
