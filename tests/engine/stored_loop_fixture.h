// The serving loop with a fake model, and documents on a disk in memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/attention_text.h"
#include "engine/runtime/stored_entry.h"
#include "tests/engine/engine_loop_fixture.h"
#include "tests/engine/memory_files.h"

namespace folio::test {

class StoredLoop : public testing::Test {
 protected:
  StoredLoop() { Start(); }
  ~StoredLoop() override { Stop(); }

  void Start() {
    home_ = *SegmentHome::Create(&page_files_, "pages",
                                 {.num_slices = kGeometry.num_slices(), .slice_bytes = 4096});
    keeper_ = *DocumentKeeper::Open(&files_, home_.get(), &tokenizer_,
                                    {.quota_bytes = quota_bytes_, .page_tokens = 16});
    store_ = *KvStore::Create(
        kGeometry, 200 * 4096, HostMemory(),
        {.home = home_.get(), .home_bytes = home_pages_ * 4096, .step_tokens = 64});
    directory_ = std::make_unique<DocumentDirectory>(DocumentLimits{});
    for (const auto& manifest : keeper_->List()) {
      directory_->AddStored(StoredEntryOf(
          *manifest, *keeper_, Attention("full"),
          [](const AttentionSpec& spec) { return ResolveAttention(spec, {}, Model(), {}); }));
    }
    runner_ = std::make_unique<FakeRunner>();
    loop_ =
        std::make_unique<EngineLoop>(EngineLoopOptions{.scheduler = {64, 32},
                                                       .model = Model(),
                                                       .max_running_requests = 4,
                                                       .vocab_size = kVocab},
                                     store_.get(), runner_.get(), directory_.get(), keeper_.get());
    keeper_->Start([this](EngineCommands commands) {
      MutexLock lock(&mutex_);
      posted_.splice(posted_.end(), commands);
      changed_.NotifyAll();
    });
  }
  void Stop() {
    loop_->FailAll(absl::UnavailableError("the end"));
    keeper_->Stop();
    posted_.clear();
    loop_.reset();
    store_.reset();
    keeper_.reset();
    home_.reset();
  }
  void Restart() {
    Stop();
    Start();
  }

  // What the keeper has said so far is done.
  void Apply() {
    EngineCommands commands;
    {
      MutexLock lock(&mutex_);
      commands.swap(posted_);
    }
    for (EngineCommand& command : commands) command.run(*loop_);
  }
  // Without a step.
  template <typename Condition>
  void WaitUntil(Condition condition) {
    for (Apply(); !condition(); Apply()) {
      MutexLock lock(&mutex_);
      while (posted_.empty()) changed_.Wait(&mutex_);
    }
  }
  template <typename Condition>
  void RunUntil(Condition condition) {
    for (Apply(); !condition(); Apply()) {
      if (loop_->RunStep()) continue;
      MutexLock lock(&mutex_);
      while (posted_.empty()) changed_.Wait(&mutex_);
    }
  }

  DocumentHandle Upload(const std::string& id, int num_tokens,
                        const std::string& strategy = "full") {
    const AttentionSpec attention = Attention(strategy);
    const DocumentHandle handle = directory_->Create(id, attention, nullptr)->handle;
    loop_->documents().Create(handle, attention);
    EXPECT_TRUE(directory_->AddTokens(handle, num_tokens).ok());
    loop_->documents().Append(handle, std::vector<int32_t>(num_tokens, 4), num_tokens);
    EXPECT_TRUE(directory_->FinishUpload(handle).ok());
    loop_->documents().Finish(handle);
    return handle;
  }
  DocumentInfo Info(const std::string& id) const { return *directory_->Find(id); }
  void UploadAndSave(const std::string& id, int num_tokens, const std::string& strategy = "full") {
    Upload(id, num_tokens, strategy);
    RunUntil([&] { return Info(id).saved || !Info(id).save_error.ok(); });
    EXPECT_TRUE(Info(id).saved) << Info(id).save_error;
  }
  std::shared_ptr<Recorder> Submit(const std::string& id, int num_tokens = 3) {
    GenerateSpec spec;
    spec.document = Info(id).handle;
    spec.attention = Info(id).attention;
    spec.tokens.assign(num_tokens, 3);
    spec.stop.max_new_tokens = 2;
    auto recorder = std::make_shared<Recorder>();
    loop_->Submit(++last_id_,
                  std::make_unique<Generation>(std::move(spec), recorder, tokenizer_, kEos));
    return recorder;
  }
  // Of a request without a document.
  std::shared_ptr<Recorder> SubmitPrompt(int num_tokens, int max_new_tokens) {
    GenerateSpec spec;
    spec.attention = Attention("full");
    spec.tokens.assign(num_tokens, 3);
    spec.stop.max_new_tokens = max_new_tokens;
    auto recorder = std::make_shared<Recorder>();
    loop_->Submit(++last_id_,
                  std::make_unique<Generation>(std::move(spec), recorder, tokenizer_, kEos));
    return recorder;
  }
  // The tokens that were in the cache.
  int64_t Ask(const std::string& id, int num_tokens = 3) {
    const auto answer = Submit(id, num_tokens);
    RunUntil([&] { return answer->ended(); });
    EXPECT_TRUE(answer->completed().has_value()) << answer->status();
    return answer->completed().value_or(CompletedEvent{}).usage.cached_tokens;
  }

  const LetterTokenizer tokenizer_{kVocab};
  int64_t quota_bytes_ = int64_t{64} << 20;
  int64_t home_pages_ = 1000;
  MemoryFiles page_files_;
  MemoryFiles files_;
  std::unique_ptr<SegmentHome> home_;
  std::unique_ptr<DocumentKeeper> keeper_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DocumentDirectory> directory_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<EngineLoop> loop_;
  RequestId last_id_ = 0;

  Mutex mutex_;
  CondVar changed_;
  EngineCommands posted_ FOLIO_GUARDED_BY(mutex_);
};

}  // namespace folio::test
