#include "server/document_watches.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/server/fake_engine.h"

namespace folio::testing {
namespace {

// Counts what it is told; can hold the pump up while it is told.
class Counting final : public server::DocumentWatcher {
 public:
  void OnDocument(const std::optional<DocumentInfo>& document, SteadyTime) override {
    MutexLock lock(&mu_);
    ++times_;
    known_tokens_ = document.has_value() ? document->known_tokens : -1;
    changed_.NotifyAll();
    while (holds_) changed_.Wait(&mu_);
  }
  void Handle(Event) override {}
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status&) override {}

  void Hold(bool holds) {
    MutexLock lock(&mu_);
    holds_ = holds;
    changed_.NotifyAll();
  }
  void WaitForTimes(int times) {
    MutexLock lock(&mu_);
    while (times_ < times) changed_.Wait(&mu_);
  }
  void WaitForTokens(int64_t tokens) {
    MutexLock lock(&mu_);
    while (known_tokens_ != tokens) changed_.Wait(&mu_);
  }
  int times() {
    MutexLock lock(&mu_);
    return times_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int times_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t known_tokens_ FOLIO_GUARDED_BY(mu_) = 0;
  bool holds_ FOLIO_GUARDED_BY(mu_) = false;
};

class DocumentWatches : public ::testing::Test {
 protected:
  DocumentWatches() : engine_(Options()) {
    book_ = engine_.OpenDocument("book", {}, nullptr, {})->handle;
  }
  EngineOptions Options() {
    EngineOptions options;
    options.on_document_change = [this](const DocumentHandle& handle) {
      watches_.OnChange(handle);
    };
    return options;
  }
  void Append() { EXPECT_TRUE(engine_.AppendToDocument(book_, {3}, 0).ok()); }
  std::shared_ptr<Counting> Join() {
    auto watcher = std::make_shared<Counting>();
    watches_.Join("book", watcher);
    watcher->WaitForTimes(1);
    return watcher;
  }

  server::DocumentWatches watches_{&pump_, [this] { return &engine_; }};
  FakeEngine engine_;
  DocumentHandle book_;
  server::EventPump pump_{[] { return std::chrono::steady_clock::now(); }};
};

TEST_F(DocumentWatches, AChangeWakesThePumpOnceHoweverManyCome) {
  const auto first = Join();
  first->Hold(true);
  Append();
  first->WaitForTimes(2);  // the pump is held up
  for (int n = 0; n < 100; ++n) Append();
  first->Hold(false);
  first->WaitForTokens(101);
  EXPECT_EQ(first->times(), 3);
}

TEST_F(DocumentWatches, AllWatchersSeeTheLastOfManyChanges) {
  constexpr int kChanges = 2000;
  std::vector<std::shared_ptr<Counting>> watchers;
  std::thread changes([&] {
    for (int n = 0; n < kChanges; ++n) Append();
  });
  for (int n = 0; n < 50; ++n) watchers.push_back(Join());
  for (const auto& watcher : watchers) watcher->WaitForTokens(kChanges);
  changes.join();
}

TEST_F(DocumentWatches, WhoHasLeftIsToldNothing) {
  const auto left = Join();
  const auto stays = Join();
  left->WaitForTimes(2);  // of what the other joined, too
  watches_.Leave("book", left);
  const int times = left->times();
  Append();
  stays->WaitForTokens(1);
  EXPECT_EQ(left->times(), times);
  EXPECT_TRUE(engine_.DeleteDocument(book_).ok());
  stays->WaitForTokens(-1);
  watches_.Leave("book", stays);
}

}  // namespace
}  // namespace folio::testing
