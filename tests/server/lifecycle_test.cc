#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/exit_code.h"
#include "tests/scratch_dir.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

grpc::ByteBuffer Bytes(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                     const std::string& request, std::string* response) {
  grpc::ClientContext context;
  grpc::ByteBuffer answer;
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer>(
          channel.get(), rpc, &context, Bytes(request), &answer)
          .status();
  if (status.ok()) *response = Text(answer);
  return status;
}

// grpc.health.v1 on the wire: 1 is SERVING, 2 is NOT_SERVING; 0: unknown service.
int Health(TestServer* server, const std::string& service) {
  std::string response;
  const std::string request =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Status status =
      CallRaw(server->channel(), "/grpc.health.v1.Health/Check", request, &response);
  return status.ok() && response.size() == 2 ? response[1] : 0;
}

// A refusal sends no headers first, so that the retry policy of a client's channel applies to it.
TEST(Lifecycle, RefusalsAreRetriedByGrpcItself) {
  TestServer server(WithMetrics(), TestServer::Model::kNotLoaded);
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(R"({"methodConfig": [{"name": [{}], "retryPolicy": {
      "maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "5s", "backoffMultiplier": 3,
      "retryableStatusCodes": ["UNAVAILABLE"]}}]})");
  const auto channel =
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server.runner().grpc_port()),
                                grpc::InsecureChannelCredentials(), arguments);
  Generate generate(channel, Ask("hello"));
  Upload upload(channel);
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.FinishUpload();
  const std::string loading = R"(folio_requests_rejected_total{reason="loading"})";
  while (server.Metric(loading) < 2) {
  }
  server.Load();
  EXPECT_TRUE(upload.Finish().ok());
  std::thread engine([&server] {
    server.engine().WaitForRequest();
    server.engine().Emit(Completed(1));
  });
  EXPECT_TRUE(generate.Finish().ok());  // gRPC tries again while somebody reads
  engine.join();
  EXPECT_GE(server.Metric(loading), 2);
}

// Of the metrics port.
bool Says200(const TestServer& server, const std::string& path) {
  return server.Get(path).find(" 200 OK") != std::string::npos;
}

TEST(Lifecycle, HealthFollowsTheModelAndTheDrain) {
  TestServer server(WithMetrics(), TestServer::Model::kNotLoaded);
  const std::vector<std::string> following = {"",
                                              "readiness",
                                              "folio.v1.Inference",
                                              "folio.v1.Documents",
                                              "folio.v1.Text",
                                              "folio.v1.Control"};
  for (const std::string& service : following) EXPECT_EQ(Health(&server, service), 2) << service;
  EXPECT_EQ(Health(&server, "liveness"), 1);
  EXPECT_TRUE(Says200(server, "/healthz"));
  EXPECT_FALSE(Says200(server, "/readyz"));
  server.Load();
  for (const std::string& service : following) EXPECT_EQ(Health(&server, service), 1) << service;
  EXPECT_TRUE(Says200(server, "/readyz"));
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  server.engine().WaitForDrain();
  for (const std::string& service : following) EXPECT_EQ(Health(&server, service), 2) << service;
  EXPECT_EQ(Health(&server, "liveness"), 1);
  EXPECT_TRUE(Says200(server, "/healthz"));
  EXPECT_FALSE(Says200(server, "/readyz"));
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  drain.join();
}

TEST(Lifecycle, BeforeTheModelIsLoadedEverythingIsUnavailable) {
  TestServer server({}, TestServer::Model::kNotLoaded);
  const auto check = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(DetailsOf(status).info.reason(), "MODEL_LOADING");
    EXPECT_TRUE(DetailsOf(status).retry.has_value());
  };
  Generate generate(server.channel(), Ask("hello"));
  check(generate.Finish());
  EXPECT_EQ(generate.Trailer("grpc-retry-pushback-ms"), "2000");
  Upload upload(server.channel());
  check(upload.Finish());
  EXPECT_EQ(upload.Trailer("grpc-retry-pushback-ms"), "2000");
  grpc::ClientContext context;
  v1::ServerInfo info;
  check(v1::Control::NewStub(server.channel())
            ->GetServerInfo(&context, v1::GetServerInfoRequest(), &info));
  EXPECT_EQ(TrailerOf(context, "grpc-retry-pushback-ms"), "2000");
  grpc::ClientContext text_context;
  v1::TokenizeResponse tokens;
  check(
      v1::Text::NewStub(server.channel())->Tokenize(&text_context, v1::TokenizeRequest(), &tokens));
  grpc::ClientContext list_context;
  v1::ListDocumentsResponse documents;
  check(v1::Documents::NewStub(server.channel())
            ->ListDocuments(&list_context, v1::ListDocumentsRequest(), &documents));
}

TEST(Lifecycle, ADrainRefusesNewWorkAndLetsTheOldEnd) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  server.engine().WaitForDrain();
  Generate more(server.channel(), Ask("more"));
  const grpc::Status refused = more.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(refused).info.reason(), "DRAINING");
  EXPECT_EQ(DetailsOf(refused).retry->retry_delay().seconds(), 1);
  EXPECT_EQ(more.Trailer("grpc-retry-pushback-ms"), "1000");
  EXPECT_EQ(Upload(server.channel()).Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  server.engine().Emit(Delta("a"));
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Next().has_accepted());
  EXPECT_EQ(call.Next().delta().text(), "a");
  EXPECT_TRUE(call.Finish().ok());
  drain.join();
}

TEST(Lifecycle, StreamsThatOutlastTheDrainEndWithUnavailable) {
  server::ServerOptions options;
  options.drain_seconds = 0;
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  Upload upload(server.channel());
  upload.Header("book");
  EXPECT_TRUE(upload.Next().has_created());
  EXPECT_TRUE(call.Next().has_accepted());
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(DetailsOf(status).retry.has_value());
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
  EXPECT_EQ(server.engine().num_running(), 0);
}

// Its text would have come for nothing; the answer beside it is completed.
TEST(Lifecycle, ADrainEndsUploadsSoThatTheyCanGoOn) {
  for (const bool stores : {false, true}) {
    server::ServerOptions options;
    if (stores) options.engine.kv_dir = "/somewhere";
    TestServer server(options);
    Generate call(server.channel(), Ask("hello"));
    EXPECT_TRUE(call.Next().has_accepted());
    Upload upload(server.channel());
    upload.Header("book");
    EXPECT_TRUE(upload.Next().has_created());
    upload.Chunk(0, "abc");
    std::thread drain([&] { server.runner().Drain([] { return false; }); });
    const grpc::Status status = upload.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(DetailsOf(status).info.reason(), "DRAINING");
    EXPECT_TRUE(DetailsOf(status).retry.has_value());
    EXPECT_NE(
        status.error_message().find(stores ? "go on with the document_id" : "upload it again"),
        std::string::npos)
        << status.error_message();
    server.engine().WaitForPause("book");
    server.engine().Emit(Completed(1));
    EXPECT_TRUE(call.Finish().ok());
    drain.join();
  }
}

TEST(Lifecycle, AnUploadWhoseTextIsWholeIsReadyBeforeADrainEnds) {
  TestServer server;
  server.engine().HoldPrefill();
  // A channel within the process would end with the server.
  Upload upload(server.TcpChannel());
  upload.Header("book");
  upload.Chunk(0, "abc");
  upload.FinishUpload();
  server.engine().WaitForState("book", DocumentState::kPrefilling);
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  server.engine().WaitForDrain();
  EXPECT_EQ(Generate(server.channel(), Ask("x")).Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  server.engine().EmitToDocument("book", CompletedEvent{});
  EXPECT_TRUE(upload.NextOf(v1::UploadDocumentEvent::kReady).has_ready());
  EXPECT_TRUE(upload.Finish().ok());
  drain.join();
}

TEST(Lifecycle, ASecondSignalShortensTheDrain) {
  server::ServerOptions options;
  options.drain_seconds = 3600;
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  EXPECT_TRUE(call.Next().has_accepted());
  std::atomic<bool> hurry{false};
  std::thread drain([&] { server.runner().Drain([&] { return hurry.exchange(false); }); });
  server.engine().WaitForDrain();
  hurry = true;
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST(Lifecycle, TheServerCanGoWhileStreamsRun) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  EXPECT_TRUE(call.Next().has_accepted());
  std::thread reader([&] { EXPECT_FALSE(call.Finish().ok()); });
  server.Stop();
  reader.join();
}

TEST(Lifecycle, ReflectionListsTheServices) {
  TestServer server;
  grpc::ClientContext context;
  const grpc::internal::RpcMethod rpc(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::BIDI_STREAMING);
  const auto channel = server.channel();
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(), rpc, &context));
  stream->Write(Bytes("\x3a\x01*"));  // list_services: "*"
  grpc::ByteBuffer answer;
  ASSERT_TRUE(stream->Read(&answer));
  for (const char* service : {"folio.v1.Inference", "folio.v1.Documents", "folio.v1.Text",
                              "folio.v1.Control", "grpc.health.v1.Health"}) {
    EXPECT_NE(Text(answer).find(service), std::string::npos) << service;
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(Lifecycle, AMessageOfHundredMebibytesIsRefusedAndTheServerLives) {
  TestServer server;
  Generate call(server.TcpChannel(), Ask(std::string(100 << 20, 'x')));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Generate next(server.TcpChannel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(next.Finish().ok());
}

TEST(Lifecycle, MalformedMessagesAreRefusedAndTheServerLives) {
  TestServer server;
  std::string response;
  const std::vector<std::string> malformed = {
      "\xFF\xFF\xFF\xFF",                  // no field
      std::string("\x0a\x7F", 2),          // a string that is longer than the message
      std::string("\x0a\x02\xC3\x28", 4),  // a string that is not UTF-8
      std::string("\x0a\x04"
                  "a\0b\0",
                  6)};  // NUL bytes: a bad document id
  for (const std::string& message : malformed) {
    EXPECT_FALSE(
        CallRaw(server.channel(), "/folio.v1.Documents/GetDocument", message, &response).ok());
  }
  EXPECT_EQ(
      CallRaw(server.channel(), "/folio.v1.Inference/NoSuchMethod", "", &response).error_code(),
      grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Health(&server, "readiness"), 1);
}

TEST(Lifecycle, TooManyPromptsBeingTokenisedAreRefusedAtOnce) {
  server::ServerOptions options;
  options.engine.max_running_requests = 1;
  options.engine.max_queued_requests = 1;
  TestServer server(options);
  Generate first(server.channel(), Ask(std::string(FakeTokenizer::kHold)));
  Generate second(server.channel(), Ask(std::string(FakeTokenizer::kHold)));
  server.engine().fake_tokenizer().WaitUntilHolding(2);
  const grpc::Status status = Generate(server.channel(), Ask("hello")).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "QUEUE_FULL");
  EXPECT_TRUE(DetailsOf(status).retry.has_value());
  server.engine().fake_tokenizer().Release();
  server.engine().WaitForRequest(2);
  server.engine().Emit(Completed(1), 1);
  server.engine().Emit(Completed(1), 2);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
}

TEST(Lifecycle, WhatTheQueueHasNoRoomForIsNotRead) {
  TestServer server;
  server.engine().RefuseQueue(absl::ResourceExhaustedError("the queue is full"));
  // One that is read would hold.
  const grpc::Status status =
      Generate(server.channel(), Ask(std::string(FakeTokenizer::kHold))).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "QUEUE_FULL");
  EXPECT_TRUE(DetailsOf(status).retry.has_value());
}

// Six at once, before the engine hears of the first: two can run, three can wait.
TEST(Lifecycle, OfABurstOnlyWhatCanNeitherRunNorWaitIsRefused) {
  server::ServerOptions options;
  options.engine.max_running_requests = 2;
  options.engine.max_queued_requests = 3;
  TestServer server(WithMetrics(options));
  std::vector<std::unique_ptr<Generate>> burst;
  for (int n = 0; n < 6; ++n) {
    burst.push_back(
        std::make_unique<Generate>(server.channel(), Ask(std::string(FakeTokenizer::kHold))));
  }
  while (server.Metric(R"(folio_requests_rejected_total{reason="queue"})") < 1) {
  }
  server.engine().fake_tokenizer().Release();
  server.engine().WaitForRequest(5);
  for (RequestId id = 1; id <= 5; ++id) server.engine().Emit(Completed(1), id);
  int num_refused = 0;
  for (const auto& call : burst) {
    const grpc::Status status = call->Finish();
    if (status.ok()) continue;
    ++num_refused;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_TRUE(DetailsOf(status).retry.has_value());
  }
  EXPECT_EQ(num_refused, 1);
}

absl::StatusOr<std::unique_ptr<Engine>> NoEngine(const EngineOptions&) {
  return absl::NotFoundError("no model there");
}

TEST(Lifecycle, AddressesInUseAndMissingModelsAreErrors) {
  TestServer server(WithMetrics());
  server::ServerOptions options;
  options.listen = absl::StrCat("127.0.0.1:", server.runner().grpc_port());
  options.metrics_listen = "off";
  server::Runner same_port(options, NoEngine);
  EXPECT_EQ(same_port.Start().code(), absl::StatusCode::kUnavailable);
  options.listen = "127.0.0.1:0";
  options.metrics_listen = absl::StrCat("127.0.0.1:", server.runner().metrics_port());
  server::Runner same_metrics_port(options, NoEngine);
  EXPECT_EQ(same_metrics_port.Start().code(), absl::StatusCode::kUnavailable);
  options.metrics_listen = "off";
  server::Runner no_model(options, NoEngine);
  EXPECT_TRUE(no_model.Start().ok());
  EXPECT_EQ(no_model.LoadModel().code(), absl::StatusCode::kNotFound);
}

// tests/system/lifecycle_test.py has the process.
TEST(Lifecycle, ErrorsOfTheStartHaveTheirExitCodes) {
  EXPECT_EQ(server::CodeOfStart(absl::UnavailableError("")), server::kExitCannotListen);
  EXPECT_EQ(server::CodeOfStart(absl::ResourceExhaustedError("")), server::kExitNoMemory);
  EXPECT_EQ(server::CodeOfStart(absl::InvalidArgumentError("")), server::kExitBadConfig);
  EXPECT_EQ(server::CodeOfStart(absl::NotFoundError("")), server::kExitBadConfig);
  EXPECT_EQ(server::CodeOfLoad(absl::ResourceExhaustedError("")), server::kExitNoMemory);
  EXPECT_EQ(server::CodeOfLoad(absl::NotFoundError("")), server::kExitCannotLoad);
}

TEST(Lifecycle, ThePortFileHoldsTheBoundPorts) {
  const ScratchDir dir;
  server::ServerOptions options;
  options.port_file = dir.Path("ports.json");
  TestServer server(WithMetrics(options));
  std::ifstream file(options.port_file);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), absl::StrCat("{\"grpc\": ", server.runner().grpc_port(),
                                     ", \"metrics\": ", server.runner().metrics_port(), "}\n"));
}

}  // namespace
}  // namespace folio::testing
