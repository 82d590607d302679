#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/test_seed.h"

namespace folio::test {

// Opens, fills, asks and deletes documents of the same few ids, at random, as others do beside it.
// Only the one who made a document appends to it, under the handle that it got: all that the
// document ever has are these tokens.
class RandomCaller {
 public:
  RandomCaller(Engine* engine, int number) : engine_(engine), random_(TestSeed() + number) {}

  void Step() {
    const std::string id(1, static_cast<char>('x' + Below(3)));
    switch (Below(6)) {
      case 0:
        return Delete(id);
      case 1:
        return Ask(id);
      default:
        return Append(id);
    }
  }

 private:
  struct Mine final : DocumentAttachment {
    int64_t num_tokens = 0;
  };
  int Below(int bound) { return static_cast<int>(random_() % bound); }

  void Append(const std::string& id) {
    const auto fresh = std::make_shared<Mine>();
    const auto opened = engine_->OpenDocument(id, {}, fresh, {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    if (opened->attachment == fresh) mine_[id] = {opened->handle, fresh};
    const auto found = mine_.find(id);
    if (found == mine_.end()) return;
    const auto& [handle, document] = found->second;
    // Another thread may have deleted it: refused then, and no more.
    if (Below(2) == 0) engine_->FollowDocument(handle, std::make_shared<Recorder>()).IgnoreError();
    if (Below(4) == 0) engine_->PauseDocument(handle);
    const int count = 1 + Below(9);
    if (engine_->AppendToDocument(handle, std::vector<int32_t>(count, 5), 0).ok()) {
      document->num_tokens += count;
    }
    if (Below(6) == 0) engine_->FinishDocument(handle).IgnoreError();
    if (const auto info = engine_->GetDocument(id); info && info->handle == handle) {
      EXPECT_EQ(info->attachment, document);
      EXPECT_EQ(info->known_tokens, document->num_tokens);
      EXPECT_LE(info->prefilled_tokens, info->known_tokens);
    }
  }

  void Ask(const std::string& id) {
    const auto info = engine_->GetDocument(id);
    if (!info) return;
    GenerateSpec spec;
    spec.tokens = {5};
    spec.stop.max_new_tokens = 2;
    spec.document = info->handle;
    const auto asked = engine_->Submit(std::move(spec), std::make_shared<Recorder>());
    if (asked.ok() && Below(2) == 0) engine_->Cancel(*asked, absl::CancelledError("enough"));
  }

  void Delete(const std::string& id) {
    if (const auto info = engine_->GetDocument(id)) {
      engine_->DeleteDocument(info->handle).IgnoreError();
    }
  }

  Engine* const engine_;
  std::mt19937_64 random_;
  std::map<std::string, std::pair<DocumentHandle, std::shared_ptr<Mine>>> mine_;
};

}  // namespace folio::test
