// The real engine with a cache that is larger than its memory, on a disk that fails.
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;

constexpr int kDocumentTokens = 2000;  // 8 MB of pages

class EngineTiers : public testing::Test {
 protected:
  EngineTiers() {
    EngineOptions options;
    options.model_dir = TestData("../models/folio-tiny");
    options.num_threads = 1;
    options.step_tokens = 64;
    options.kv_bytes = int64_t{4} << 20;
    options.kv_dir = dir_.path() + "/kv";
    options.kv_disk_bytes = int64_t{64} << 20;
    options.store_bytes = 1;  // no document has room: pages stay where their first copy is
    auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  DocumentHandle Upload(const std::string& id, int32_t token) {
    const AttentionSpec full = *engine_->ResolveAttention({{"full", {}}, {}}, {});
    const DocumentHandle handle = engine_->OpenDocument(id, full, nullptr)->handle;
    const auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    std::vector<int32_t> tokens(kDocumentTokens);
    for (size_t n = 0; n < tokens.size(); ++n) {
      tokens[n] = token + static_cast<int32_t>(n * n % 97);
    }
    EXPECT_TRUE(engine_->AppendToDocument(handle, tokens, 0).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    return handle;
  }
  std::shared_ptr<Recorder> Ask(const DocumentHandle& document) {
    GenerateSpec spec;
    spec.tokens.assign(5, 5);
    spec.stop.max_new_tokens = 4;
    spec.stop.ignore_eos = true;
    spec.document = document;
    spec.attention = *engine_->ResolveAttention({{"full", {}}, {}}, {});
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->Submit(spec, sink).ok());
    sink->WaitForEnd();
    return sink;
  }
  std::string PagesDirectory() const { return dir_.path() + "/kv/pages"; }
  // Overwrites some of every slice in all files that there are.
  void DamageFiles() {
    for (const auto& file : std::filesystem::directory_iterator(PagesDirectory())) {
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      for (int64_t at = 8; at < static_cast<int64_t>(file.file_size()); at += 4096) {
        stream.seekp(at);
        stream << "damaged";
      }
    }
  }

  ScratchDir dir_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTiers, ADamagedDocumentFailsAloneAndItsIdCanBeUsedAgain) {
  const DocumentHandle damaged = Upload("damaged", 3);
  const auto before = Ask(damaged);
  ASSERT_TRUE(before->completed().has_value()) << before->status();
  EXPECT_GT(engine_->Stats().slice_misses, 0);
  DamageFiles();
  const DocumentHandle whole = Upload("whole", 200);
  EXPECT_EQ(Ask(damaged)->status().code(), absl::StatusCode::kUnavailable);
  while (engine_->GetDocument("damaged")->state != DocumentState::kFailed) {
    std::this_thread::yield();  // its readers are told first
  }
  const auto other = Ask(whole);
  EXPECT_TRUE(other->completed().has_value()) << other->status();

  ASSERT_TRUE(engine_->DeleteDocument(damaged).ok());
  const auto again = Ask(Upload("damaged", 3));
  EXPECT_EQ(again->text(), before->text());
}

TEST_F(EngineTiers, NothingIsLeftWhenDocumentsAreGone) {
  const DocumentHandle document = Upload("book", 3);
  ASSERT_TRUE(Ask(document)->completed().has_value());
  EXPECT_GT(engine_->Stats().disk_used_bytes, int64_t{4} << 20);
  EXPECT_LE(engine_->Stats().kv_used_bytes, int64_t{4} << 20);
  ASSERT_TRUE(engine_->DeleteDocument(document).ok());
  while (engine_->Stats().disk_used_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().kv_reserved_bytes, 0);
}

// Full attention reads every slice in every step, and twice as much as there is memory for.
TEST_F(EngineTiers, AReceiptSaysWhatWasReadFromDisk) {
  constexpr int64_t kSlices = 16;
  constexpr int64_t kSliceBytes = 4096;
  constexpr int64_t kSteps = 4;  // one of the question, the last token is not computed
  const auto answer = Ask(Upload("book", 3))->completed();
  ASSERT_TRUE(answer.has_value());
  const MemoryReceipt& receipt = answer->memory;
  const int64_t num_pages = kDocumentTokens / 16;
  EXPECT_GE(receipt.slice_hits + receipt.slice_misses, kSteps * num_pages * kSlices);
  EXPECT_LE(receipt.slice_hits + receipt.slice_misses, kSteps * (num_pages + 1) * kSlices);
  EXPECT_GT(receipt.slice_misses, kSteps * num_pages * kSlices / 4);
  EXPECT_EQ(receipt.disk_read_bytes, receipt.slice_misses * kSliceBytes);
  EXPECT_GT(receipt.disk_wait_seconds, 0);
}

TEST_F(EngineTiers, ADiskThatTakesNothingIsTheDocumentsErrorWithItsReason) {
  std::filesystem::remove_all(PagesDirectory());  // every file that is to be made fails
  const AttentionSpec full = *engine_->ResolveAttention({{"full", {}}, {}}, {});
  const DocumentHandle handle = engine_->OpenDocument("book", full, nullptr)->handle;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->FollowDocument(handle, sink).ok());
  ASSERT_TRUE(engine_->AppendToDocument(handle, std::vector<int32_t>(kDocumentTokens, 7), 0).ok());
  sink->WaitForEnd();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted) << sink->status();
  EXPECT_THAT(sink->status().message(), HasSubstr("pages/0")) << sink->status();
  ASSERT_TRUE(engine_->DeleteDocument(handle).ok());

  std::filesystem::create_directory(PagesDirectory());
  EXPECT_TRUE(Ask(Upload("book", 3))->completed().has_value());
}

TEST(EngineTiersStart, DirectoriesThatCannotBeUsedAreRefused) {
  ScratchDir dir;
  EngineOptions options;
  options.model_dir = TestData("../models/folio-tiny");
  options.kv_bytes = int64_t{16} << 20;
  options.kv_dir = dir.path() + "/missing/kv";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(dir.path() + "/file") << "x";
  options.kv_dir = dir.path() + "/file";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.kv_dir = dir.path();
  options.kv_disk_bytes = 1000;
  EXPECT_THAT(Engine::Create(options).status().message(), HasSubstr("--kv-disk-bytes"));
}

}  // namespace
}  // namespace folio::test
