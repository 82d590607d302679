#include "engine/base/mutex.h"

#include <thread>

#include "gtest/gtest.h"

namespace folio {
namespace {

struct Mailbox {
  Mutex mu;
  CondVar changed;
  int letters FOLIO_GUARDED_BY(mu) = 0;
};

TEST(CondVar, AWaiterSeesWhatWasWrittenBeforeTheNotification) {
  Mailbox box;
  std::thread writer([&box] {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(&box.mu);
      ++box.letters;
      box.changed.NotifyOne();
    }
  });
  {
    MutexLock lock(&box.mu);
    while (box.letters < 1000) box.changed.Wait(&box.mu);
    EXPECT_EQ(box.letters, 1000);
  }
  writer.join();
}

TEST(CondVar, AWaitEndsAtItsTimeAndHoldsTheMutexAgain) {
  Mailbox box;
  const auto now = std::chrono::steady_clock::now();
  {
    MutexLock lock(&box.mu);
    while (box.changed.WaitUntil(&box.mu, now)) {
    }
    ++box.letters;
  }
  std::thread other([&box] {
    MutexLock lock(&box.mu);
    EXPECT_EQ(box.letters, 1);
  });
  other.join();
}

}  // namespace
}  // namespace folio
