// What clients do to a server, by accident or not: rows 1 to 6 of docs/faults.md.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/whole_server.h"
#include "tests/server/raw_call.h"
#include "tests/server/tcp_proxy.h"

namespace folio::testing {
namespace {

std::string CancelledIn(const std::string& phase) {
  return absl::StrCat("folio_request_cancellations_total{phase=\"", phase, "\"}");
}

// By cancelling and by a connection that is reset, in each phase and after the end.
TEST(Faults, ClientVanishes) {
  server::ServerOptions options = WholeOptions();
  options.engine.kv_bytes = int64_t{64} << 20;
  WholeServer server(options);
  const auto num_waiting = [&] { return server.Metric("folio_num_requests_waiting"); };
  enum class Moment { kQueued, kPrefill, kDecode, kCompleted };
  for (const bool reset : {false, true}) {
    for (const Moment moment :
         {Moment::kQueued, Moment::kPrefill, Moment::kDecode, Moment::kCompleted}) {
      TcpProxy proxy(server.runner().grpc_port());
      Generate first(server.channel(), Work(5, 5000));
      while (!first.Next().has_delta()) {
      }
      Generate call(reset ? server.TcpChannel(proxy.port()) : server.channel(),
                    Work(3000, moment == Moment::kCompleted ? 5 : 3000));
      EXPECT_TRUE(call.Next().has_accepted());
      if (moment == Moment::kQueued) {
        while (num_waiting() == 0) std::this_thread::yield();
      } else {
        first.Cancel();
        v1::GenerateEvent event;
        do {
          event = call.Next();
        } while (moment == Moment::kPrefill  ? !event.has_prefill()
                 : moment == Moment::kDecode ? !event.has_delta()
                                             : !event.has_completed());
      }
      if (reset) {
        proxy.Cut();
      } else {
        call.Cancel();
      }
      call.Finish();
      if (moment == Moment::kQueued) {
        while (num_waiting() > 0) std::this_thread::yield();
      }
      first.Cancel();
      EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::CANCELLED);
      EXPECT_EQ(server.KvUsedWhenIdle(), 0);
    }
  }
  EXPECT_EQ(server.Metric(CancelledIn("queue")), 2);
  // The server hears of a reset when the network says so. The eight others decoded.
  EXPECT_EQ(server.Metric(CancelledIn("prefill")) + server.Metric(CancelledIn("decode")),
            2 + 2 + 8);
}

// A deadline, an operator, the client and its connection end the same request at about the same
// time.
TEST(Faults, AbortDeadlineAndDisconnectRace) {
  constexpr int kRounds = 20;
  WholeServer server;
  std::mt19937 random(7);
  for (int n = 0; n < kRounds; ++n) {
    TcpProxy proxy(server.runner().grpc_port());
    v1::GenerateRequest request = WorkThatMightEnd(3, 5000);
    request.set_request_id(absl::StrCat("race-", n));
    const std::chrono::milliseconds timeout(150 + random() % 50);
    const auto begin = std::chrono::steady_clock::now();
    Generate call(server.TcpChannel(proxy.port()), request, timeout);
    EXPECT_TRUE(call.Next().has_accepted());
    std::barrier together(3);
    const auto meet = [&] {
      together.arrive_and_wait();
      std::this_thread::sleep_until(begin + timeout);
    };
    std::thread operating([&] {
      meet();
      grpc::ClientContext context;
      v1::CancelRequestRequest cancel;
      cancel.set_request_id(request.request_id());
      v1::CancelRequestResponse response;
      v1::Control::NewStub(server.channel())->CancelRequest(&context, cancel, &response);
      EXPECT_LE(response.num_cancelled(), 1);
    });
    std::thread cutting([&] {
      meet();
      n % 2 == 0 ? proxy.Cut() : call.Cancel();
    });
    together.arrive_and_wait();
    EXPECT_FALSE(call.Finish().ok());
    operating.join();
    cutting.join();
    EXPECT_EQ(server.KvUsedWhenIdle(), 0);
  }
  // Each has ended once.
  while (server.Handled("Generate") < kRounds) std::this_thread::yield();
  EXPECT_EQ(server.Handled("Generate"), kRounds);
  EXPECT_EQ(server.Metric(R"(folio_request_success_total{finished_reason="abort"})") +
                server.Metric(R"(folio_request_success_total{finished_reason="deadline"})"),
            kRounds);
}

TEST(Faults, ReaderStopsReading) {
  server::ServerOptions options = WholeOptions();
  options.requests.max_stream_buffer_bytes = 1000;
  WholeServer server(options);
  Generate unread(server.channel(), Work(5, 5000));
  // There is one place in the batch: it is given to others.
  for (int n = 0; n < 20; ++n) {
    const Answer other = AnswerOf(server, Work(20, 10));
    EXPECT_TRUE(other.status.ok()) << other.status.error_message();
    EXPECT_EQ(other.completed.usage().completion_tokens(), 10);
  }
  const std::string aborted =
      "folio_grpc_server_handled_total{grpc_code=\"ABORTED\",grpc_method=\"Generate\"}";
  while (server.Metrics().find(aborted) == std::string::npos) {
    server.clock().Advance(std::chrono::seconds(11));
    std::this_thread::yield();
  }
  EXPECT_FALSE(unread.Finish().ok());
  EXPECT_EQ(server.KvUsedWhenIdle(), 0);
}

// Ten times as many clients as there are places, all at once, each of which comes again when it is
// told to.
TEST(Faults, TenTimesOverload) {
  server::ServerOptions options = WholeOptions();
  options.engine.max_running_requests = 1;
  options.engine.max_queued_requests = 3;
  WholeServer server(options);
  constexpr int kClients = 40;
  std::atomic<int> num_refused{0};
  std::vector<std::thread> clients;
  for (int n = 0; n < kClients; ++n) {
    clients.emplace_back([&] {
      for (;;) {
        const Answer answer = AnswerOf(server, Work(100, 5));
        if (answer.status.ok()) break;
        ++num_refused;
        ASSERT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
        const Details details = DetailsOf(answer.status);
        EXPECT_EQ(details.info.reason(), "QUEUE_FULL");
        ASSERT_TRUE(details.retry.has_value());
        const auto& delay = details.retry->retry_delay();
        EXPECT_GE(delay.seconds(), 1);
        std::this_thread::sleep_for(std::chrono::seconds(delay.seconds()) +
                                    std::chrono::nanoseconds(delay.nanos()));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(num_refused, 0);
  EXPECT_EQ(server.KvUsedWhenIdle(), 0);
}

// Cut, bit-flipped, with foreign bytes, compressed, and larger than a message may be.
TEST(Faults, MalformedMessages) {
  WholeServer server;
  UploadWhole(&server, "book", BookText(2000));
  const double kv_bytes = server.KvUsedWhenIdle();
  const std::string valid = Question("book", 2).SerializeAsString();
  std::mt19937 random(7);
  for (int n = 0; n < 1000; ++n) {
    std::string bytes = valid;
    switch (random() % 3) {
      case 0:
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        bytes.resize(random() % bytes.size());
        break;
      default:
        bytes.insert(random() % bytes.size(), std::string("\0\xC3\x28\xFF", 4));
    }
    // What is still a question may be answered.
    RawCall call(server.channel(), "/folio.v1.Inference/Generate");
    call.Send(bytes);
    const grpc::StatusCode code = call.Finish().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::INVALID_ARGUMENT ||
                code == grpc::StatusCode::NOT_FOUND ||
                code == grpc::StatusCode::FAILED_PRECONDITION)
        << code;
  }
  Generate huge(server.TcpChannel(), Ask(std::string(100 << 20, 'x')));
  EXPECT_EQ(huge.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const auto packed = v1::Inference::NewStub(server.TcpChannel())
                          ->Generate(&context, Ask(std::string(3 << 20, 'x')));
  EXPECT_EQ(packed->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(AnswerOf(server, Question("book")).status.ok());
  EXPECT_EQ(server.KvUsedWhenIdle(), kv_bytes);
}

// A text that was sent with all of these is the text that was sent at once.
TEST(Faults, UploadGapsAndResume) {
  WholeServer server;
  const std::string text = BookText(3000);
  UploadWhole(&server, "whole", text);
  size_t sent = 0;
  const auto go_on = [&](const std::function<void(Upload*)>& wrong, const char* field) {
    Upload upload(server.TcpChannel());
    upload.Header("pieces");
    EXPECT_EQ(upload.NextOf(v1::UploadDocumentEvent::kCreated).created().next_offset(), sent);
    upload.Chunk(sent, text.substr(sent, 701));
    sent += 701;
    EXPECT_EQ(upload.NextOf(v1::UploadDocumentEvent::kAck).ack().next_offset(), sent);
    wrong(&upload);
    const grpc::Status status = upload.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(status).field(), field);
  };
  go_on([&](Upload* upload) { upload->Chunk(sent + 1, "gap"); }, "chunk.offset");
  go_on([&](Upload* upload) { upload->Chunk(0, text.substr(0, 701)); }, "chunk.offset");
  go_on([&](Upload* upload) { upload->FinishUpload(sent + 1); }, "finish.total_bytes");
  {
    TcpProxy proxy(server.runner().grpc_port());
    Upload vanishing(server.TcpChannel(proxy.port()));
    vanishing.Header("pieces");
    vanishing.Chunk(sent, text.substr(sent, 500));
    EXPECT_EQ(vanishing.NextOf(v1::UploadDocumentEvent::kAck).ack().next_offset(), sent + 500);
    sent += 500;
    proxy.Cut();
    EXPECT_EQ(vanishing.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  Upload last(server.TcpChannel());
  last.Header("pieces");
  EXPECT_EQ(last.NextOf(v1::UploadDocumentEvent::kCreated).created().next_offset(), sent);
  last.Chunk(sent, text.substr(sent));
  last.FinishUpload(text.size());
  EXPECT_TRUE(last.Finish().ok());
  EXPECT_EQ(FindDocument(server, "pieces")->token_count(),
            FindDocument(server, "whole")->token_count());
  EXPECT_EQ(AnswerOf(server, Question("pieces")).text, AnswerOf(server, Question("whole")).text);

  const double kv_bytes = server.KvUsedWhenIdle();
  Upload orphan(server.TcpChannel());
  orphan.Header("orphan");
  orphan.Chunk(0, text);
  orphan.NextOf(v1::UploadDocumentEvent::kAck);
  orphan.Cancel();
  orphan.Finish();
  server.clock().Advance(std::chrono::seconds(3601));
  while (FindDocument(server, "orphan").has_value()) std::this_thread::yield();
  EXPECT_TRUE(FindDocument(server, "whole").has_value());
  while (server.KvUsedWhenIdle() != kv_bytes) std::this_thread::yield();
}

}  // namespace
}  // namespace folio::testing
