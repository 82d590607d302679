#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runtime/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/test_model.h"

namespace folio::test {

// Two segments, an unfinished chunk and an unfinished page.
inline constexpr int kDocumentTokens = 1205;

struct Text final : public DocumentAttachment {
  explicit Text(StoredText t) : text(std::move(t)) {}
  StoredText stored_text() const override { return text; }
  void OnTokensRead(std::span<const int32_t> read) override {
    tokens.assign(read.begin(), read.end());
  }
  const StoredText text;
  std::vector<int32_t> tokens;
};

class StoredDocuments : public testing::Test {
 protected:
  StoredDocuments() {
    options_.model_dir = TestData("../models/folio-tiny");
    options_.num_threads = 1;
    options_.step_tokens = 64;
    options_.kv_bytes = int64_t{4} << 20;
    options_.kv_dir = dir_.path() + "/kv";
    options_.kv_disk_bytes = int64_t{64} << 20;
    options_.store_bytes = int64_t{64} << 20;
    options_.restore_attachment = [](const StoredText& text, const Tokenizer&) {
      return std::make_shared<Text>(text);
    };
    Restart();
  }
  void Restart() {
    engine_.reset();
    auto engine = Engine::Create(options_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  AttentionSpec Resolved(const std::string& strategy) const {
    return *engine_->ResolveAttention({{strategy, {}}, {}}, {});
  }
  static std::vector<int32_t> TokensOf(int32_t first) {
    std::vector<int32_t> tokens(kDocumentTokens);
    for (size_t n = 0; n < tokens.size(); ++n) {
      tokens[n] = first + static_cast<int32_t>(n * n % 97);
    }
    return tokens;
  }
  DocumentHandle Open(const std::string& id, const std::string& strategy) {
    const auto text = std::make_shared<Text>(
        StoredText{"name of " + id, "secret", 1700, 4321, true, "chatml-01", 77});
    return engine_->OpenDocument(id, Resolved(strategy), text, {})->handle;
  }
  DocumentHandle Upload(const std::string& id, const std::string& strategy, int32_t first = 3) {
    const DocumentHandle handle = Open(id, strategy);
    const auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    EXPECT_TRUE(engine_->AppendToDocument(handle, TokensOf(first), 4321).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    return handle;
  }
  DocumentInfo WaitUntilSaved(const std::string& id) {
    for (;;) {
      const DocumentInfo info = *engine_->GetDocument(id);
      if (info.saved || !info.save_error.ok()) return info;
      std::this_thread::yield();
    }
  }
  DocumentHandle UploadAndSave(const std::string& id, const std::string& strategy,
                               int32_t first = 3) {
    const DocumentHandle handle = Upload(id, strategy, first);
    EXPECT_TRUE(WaitUntilSaved(id).saved) << WaitUntilSaved(id).save_error;
    return handle;
  }
  std::shared_ptr<Recorder> Submit(const std::string& id, int max_new_tokens = 6,
                                   const std::string& strategy = "") {
    const DocumentInfo document = *engine_->GetDocument(id);
    GenerateSpec spec;
    spec.tokens = {5, 6, 7, 8, 9};
    spec.stop.max_new_tokens = max_new_tokens;
    spec.stop.ignore_eos = true;
    spec.document = document.handle;
    spec.attention = strategy.empty() ? document.attention : Resolved(strategy);
    auto sink = std::make_shared<Recorder>();
    const auto submitted = engine_->Submit(spec, sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return sink;
  }
  std::shared_ptr<Recorder> Ask(const std::string& id, const std::string& strategy = "") {
    const auto sink = Submit(id, 6, strategy);
    sink->WaitForEnd();
    return sink;
  }
  int64_t CachedTokens(const std::string& id) {
    const auto answer = Ask(id);
    EXPECT_TRUE(answer->completed().has_value()) << answer->status();
    return answer->completed().has_value() ? answer->completed()->usage.cached_tokens : -1;
  }
  std::string DirectoryOf(const std::string& id) const {
    return options_.kv_dir + "/store/documents/" + id;
  }
  static void DamageFile(const std::string& path) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    for (int64_t at = std::min<int64_t>(4100, size / 2); at + 8 < size; at += 2048) {
      stream.seekp(at);
      stream << "damaged";
    }
  }
  // The largest first: pages.
  std::vector<std::filesystem::path> SegmentsOf(const std::string& id) const {
    std::vector<std::filesystem::path> segments;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(DirectoryOf(id))) {
      const bool below = entry.path().parent_path() != DirectoryOf(id);
      if (entry.is_regular_file() && below) segments.push_back(entry.path());
    }
    std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) {
      return std::filesystem::file_size(a) > std::filesystem::file_size(b);
    });
    return segments;
  }
  bool HasFilesOf(const std::string& id) const { return std::filesystem::exists(DirectoryOf(id)); }

  ScratchDir dir_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace folio::test
