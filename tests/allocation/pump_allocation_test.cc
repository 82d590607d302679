// What the event pump and the mapping of statuses do without memory.
#include <pthread.h>

#include <future>
#include <thread>

#include "engine/base/catch_errors.h"
#include "gtest/gtest.h"
#include "server/event_pump.h"
#include "server/status_mapping.h"
#include "tests/allocation/failing_new.h"

namespace folio::server {
namespace {

constexpr int64_t kAll = int64_t{1} << 40;

class Stream final : public PumpTarget {
 public:
  void Handle(Event) override {
    if (num_events_++ == 0) may_go_on.get_future().wait();
  }
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status& status) override { stopped.set_value({status, num_events_}); }

  std::promise<void> may_go_on;
  std::promise<std::pair<absl::Status, int>> stopped;

 private:
  int num_events_ = 0;
};

TEST(EventPump, AnEventThatFindsNoPlaceFailsItsStream) {
  EventPump pump([] { return std::chrono::steady_clock::now(); });
  const auto stream = std::make_shared<Stream>();
  const std::shared_ptr<EventSink> sink = pump.SinkFor(stream);
  constexpr int kNumEvents = 1000;
  std::thread poster([&] {
    pthread_setname_np(pthread_self(), "poster");
    folio::test::FailAllocations("poster", 1, kAll);
    for (int i = 0; i < kNumEvents; ++i) sink->OnEvent(PrefillEvent{});
    sink->OnEvent(CompletedEvent{});
    folio::test::StopFailing();
  });
  poster.join();
  stream->may_go_on.set_value();
  const auto [status, num_events] = stream->stopped.get_future().get();
  EXPECT_EQ(status, OutOfMemory());
  EXPECT_LT(num_events, kNumEvents) << "there was memory";
}

TEST(StatusMapping, WithoutMemoryTheCodeGoesAlone) {
  grpc::Status mapped;
  std::thread mapper([&mapped] {
    pthread_setname_np(pthread_self(), "mapper");
    folio::test::FailAllocations("mapper", 1, kAll);
    mapped = ToGrpcStatus(OutOfMemory());
    folio::test::StopFailing();
  });
  mapper.join();
  EXPECT_EQ(mapped.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace folio::server
