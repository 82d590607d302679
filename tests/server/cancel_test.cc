#include <gtest/gtest.h>

#include "tests/server/tcp_proxy.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

// Where a request is when it ends early.
enum class Where { kTokenising, kQueued, kPrefill, kDecode };
enum class Cause { kCancel, kDeadline, kDisconnect };

class EndEarly : public ::testing::TestWithParam<std::tuple<Where, Cause>> {
 protected:
  Where where() const { return std::get<0>(GetParam()); }
  Cause cause() const { return std::get<1>(GetParam()); }

  // Brings the call to where it shall end; the deadline may pass on the way, once the server has
  // the request.
  void Reach(TestServer* server, Generate* call) const {
    if (where() == Where::kTokenising) return server->engine().fake_tokenizer().WaitUntilHolding();
    server->engine().WaitForRequest();
    call->Next();
    if (where() == Where::kPrefill) server->engine().Emit(PrefillEvent{10, 0, 5});
    if (where() == Where::kDecode) server->engine().Emit(Delta("a"));
    if (where() != Where::kQueued) call->Next();
  }
};

TEST_P(EndEarly, TheEngineIsToldAndTheStreamEndsOnce) {
  TestServer server;
  TcpProxy proxy(server.runner().grpc_port());
  const std::string prompt =
      where() == Where::kTokenising ? std::string(FakeTokenizer::kHold) : "hello";
  std::optional<std::chrono::milliseconds> timeout;
  if (cause() == Cause::kDeadline) timeout = std::chrono::seconds(3);
  Generate call(cause() == Cause::kDisconnect ? server.TcpChannel(proxy.port()) : server.channel(),
                Ask(prompt), timeout);
  Reach(&server, &call);
  if (cause() == Cause::kCancel) call.Cancel();
  if (cause() == Cause::kDisconnect) proxy.Cut();
  const grpc::Status status = call.Finish();
  switch (cause()) {
    case Cause::kCancel:
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
      break;
    case Cause::kDeadline:
      EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      break;
    case Cause::kDisconnect:
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
      break;
  }
  if (where() == Where::kTokenising) {
    // The server learns of a cancellation on its own time; what is submitted before that is
    // cancelled.
    server.engine().fake_tokenizer().Release();
  } else {
    const absl::Status reason = server.engine().WaitForCancel();
    EXPECT_EQ(reason.code(), cause() == Cause::kDeadline ? absl::StatusCode::kDeadlineExceeded
                                                         : absl::StatusCode::kCancelled);
    EXPECT_EQ(server.engine().num_running(), 0);
  }
  FakeEngine& engine = server.engine();
  server.runner().Drain([] { return false; });  // returns when the call is gone
  EXPECT_EQ(engine.num_running(), 0);
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Where, Cause>>& info) {
  static constexpr const char* kWhere[] = {"Tokenising", "Queued", "Prefill", "Decode"};
  static constexpr const char* kCause[] = {"Cancel", "Deadline", "Disconnect"};
  return std::string(kWhere[static_cast<int>(std::get<0>(info.param))]) +
         kCause[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(PhasesAndCauses, EndEarly,
                         ::testing::Combine(::testing::Values(Where::kTokenising, Where::kQueued,
                                                              Where::kPrefill, Where::kDecode),
                                            ::testing::Values(Cause::kCancel, Cause::kDeadline,
                                                              Cause::kDisconnect)),
                         NameOf);

TEST(Cancel, AfterCompletedChangesNothing) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  call.Next();
  EXPECT_TRUE(call.Next().has_completed());
  call.Cancel();
  call.Finish();  // OK or CANCELLED: whichever came first
  server.runner().Drain([] { return false; });
  EXPECT_EQ(server.engine().num_running(), 0);
}

TEST(Cancel, WhileWaitingForThePoolSubmitsNothing) {
  TestServer server;
  // Both threads of the pool are busy, so the third request waits for one.
  Generate first(server.channel(), Ask(std::string(FakeTokenizer::kHold)));
  Generate second(server.channel(), Ask(std::string(FakeTokenizer::kHold)));
  server.engine().fake_tokenizer().WaitUntilHolding(2);
  Generate third(server.channel(), Ask("hello"));
  third.Cancel();
  EXPECT_EQ(third.Finish().error_code(), grpc::StatusCode::CANCELLED);
  first.Cancel();
  second.Cancel();
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(second.Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.engine().fake_tokenizer().Release();
  FakeEngine& engine = server.engine();
  server.runner().Drain([] { return false; });
  EXPECT_EQ(engine.num_running(), 0);
}

TEST(Cancel, EventsThatComeLateFindNobodyAndHarmNobody) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  call.Next();
  call.Cancel();
  for (int i = 0; i < 1000; ++i) server.engine().Emit(Delta("late"));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(server.engine().WaitForCancel().code(), absl::StatusCode::kCancelled);
}

TEST(Cancel, PhasesAreCounted) {
  TestServer server(WithMetrics());
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  call.Next();
  server.engine().Emit(PrefillEvent{10, 0, 5});
  call.Next();
  call.Cancel();
  call.Finish();
  EXPECT_EQ(server.engine().WaitForCancel().code(), absl::StatusCode::kCancelled);
  server.runner().Drain([] { return false; });
  EXPECT_EQ(server.Metric("folio_request_cancellations_total{phase=\"prefill\"}"), 1);
  EXPECT_EQ(server.Metric("folio_request_success_total{finished_reason=\"abort\"}"), 1);
}

}  // namespace
}  // namespace folio::testing
