// Several questions in one call.
#include <gtest/gtest.h>

#include <map>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using Place = std::pair<uint32_t, uint32_t>;

// One AskMany call of a client.
class AskMany {
 public:
  AskMany(const std::shared_ptr<grpc::Channel>& channel, const v1::AskManyRequest& request)
      : stub_(v1::Inference::NewStub(channel)), reader_(stub_->AskMany(&context_, request)) {}

  // The next event; checks that the numbers of each answer are dense. Empty after the last one.
  v1::AskManyEvent Next() {
    v1::AskManyEvent event;
    if (!reader_->Read(&event)) return {};
    if (event.has_event()) {
      uint64_t& next = next_[Place(event.question(), event.answer())];
      EXPECT_EQ(event.event().sequence(), next++);
    }
    return event;
  }
  grpc::Status Finish() {
    v1::AskManyEvent event;
    while (reader_->Read(&event)) rest_.push_back(event);
    return reader_->Finish();
  }
  const std::vector<v1::AskManyEvent>& rest() const { return rest_; }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::AskManyEvent>> reader_;
  std::map<Place, uint64_t> next_;
  std::vector<v1::AskManyEvent> rest_;
};

v1::AskManyRequest About(const std::string& document, const std::vector<std::string>& questions) {
  v1::AskManyRequest request;
  if (!document.empty()) request.mutable_shared()->mutable_document()->set_document_id(document);
  for (const std::string& question : questions) request.add_questions()->set_text(question);
  return request;
}

TEST(AskMany, AnswersComeInOneStreamEachWithItsPlace) {
  TestServer server;
  UploadWhole(&server, "d", "text");
  AskMany call(server.channel(), About("d", {"one", "two"}));
  for (uint32_t question = 0; question < 2; ++question) {
    const v1::AskManyEvent event = call.Next();
    EXPECT_EQ(event.question(), question);
    EXPECT_TRUE(event.event().has_accepted());
    EXPECT_EQ(event.event().accepted().prompt_tokens(), 6u + 4u);
  }
  EXPECT_EQ(server.engine().WaitForRequest(1).tokens, FakeTokenizer::TokensOf("one"));
  EXPECT_EQ(server.engine().WaitForRequest(2).tokens, FakeTokenizer::TokensOf("two"));
  server.engine().Emit(Delta("b"), 2);
  v1::AskManyEvent event = call.Next();
  EXPECT_EQ(event.question(), 1u);
  EXPECT_EQ(event.event().delta().text(), "b");
  server.engine().Emit(Completed(1), 2);
  EXPECT_TRUE(call.Next().event().has_completed());
  server.engine().Emit(Delta("a"), 1);
  event = call.Next();
  EXPECT_EQ(event.question(), 0u);
  EXPECT_EQ(event.event().delta().text(), "a");
  server.engine().Emit(Completed(1), 1);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(AskMany, SeveralAnswersToAQuestionHaveSeedsOfTheirOwn) {
  TestServer server;
  v1::AskManyRequest request = About("", {"one", "two"});
  request.set_answers_per_question(2);
  request.mutable_shared()->mutable_sampling()->set_seed(7);
  AskMany call(server.channel(), request);
  const std::vector<Place> places = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < places.size(); ++i) {
    const v1::AskManyEvent event = call.Next();
    EXPECT_EQ(Place(event.question(), event.answer()), places[i]);
    EXPECT_EQ(event.event().accepted().sampling().seed(), 7 + places[i].second);
    const GenerateSpec spec = server.engine().WaitForRequest(i + 1);
    EXPECT_FALSE(spec.document.has_value());
    EXPECT_EQ(spec.sampling.seed, 7 + places[i].second);
    // The engine computes the prompt of both once.
    EXPECT_EQ(spec.num_answers, 2);
    EXPECT_EQ(spec.first_answer, places[i].second == 0 ? 0 : i);
    if (places[i].second == 0) prompt = spec.tokens;
    EXPECT_EQ(spec.tokens, prompt);
    server.engine().Emit(Completed(1), i + 1);
  }
  EXPECT_TRUE(call.Finish().ok());
}

TEST(AskMany, OneThatFailsLeavesTheOthers) {
  TestServer server;
  AskMany call(server.channel(), About("", {"one", "two"}));
  server.engine().WaitForRequest(2);
  server.engine().Emit(FailedEvent{absl::AbortedError("no memory"), Phase::kDecode}, 1);
  for (int accepted = 0; accepted < 2; ++accepted) call.Next();
  const v1::AskManyEvent failed = call.Next();
  EXPECT_EQ(failed.question(), 0u);
  EXPECT_EQ(failed.failed().code(), static_cast<uint32_t>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(failed.failed().message(), "no memory");
  server.engine().Emit(Completed(1), 2);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.rest().back().question(), 1u);
}

TEST(AskMany, WithoutAnyAnswerTheFirstFailureIsTheStatus) {
  TestServer server;
  AskMany call(server.channel(), About("", {"one", "two"}));
  server.engine().WaitForRequest(2);
  server.engine().Emit(FailedEvent{absl::AbortedError("first"), Phase::kDecode}, 2);
  server.engine().Emit(FailedEvent{absl::InternalError("second"), Phase::kDecode}, 1);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "first");
}

TEST(AskMany, ACancelledCallEndsAllItsAnswers) {
  TestServer server;
  AskMany call(server.channel(), About("", {"one", "two", "three"}));
  server.engine().WaitForRequest(3);
  server.engine().Emit(Completed(1), 2);
  call.Cancel();
  EXPECT_TRUE(absl::IsCancelled(server.engine().WaitForCancel(1)));
  EXPECT_TRUE(absl::IsCancelled(server.engine().WaitForCancel(3)));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(AskMany, AQuestionThatIsRefusedRefusesTheCall) {
  TestServer server;
  v1::AskManyRequest request = About("", {"one", ""});
  grpc::Status status = AskMany(server.channel(), request).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message().find("questions[1]: "), 0u) << status.error_message();
  EXPECT_EQ(DetailsOf(status).field(), "prompt");
  EXPECT_EQ(server.engine().num_running(), 0);
  status = AskMany(server.channel(), About("none", {"one"})).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(AskMany, WhatCannotBeIsNamed) {
  TestServer server;
  const auto field = [&](const v1::AskManyRequest& request) {
    return DetailsOf(AskMany(server.channel(), request).Finish()).field();
  };
  EXPECT_EQ(field({}), "questions");
  v1::AskManyRequest many = About("", {"one"});
  many.set_answers_per_question(129);
  EXPECT_EQ(field(many), "questions");
  many.set_answers_per_question(0xffffffff);
  EXPECT_EQ(field(many), "questions");
  EXPECT_EQ(field(About("", std::vector<std::string>(129, "one"))), "questions");
  v1::AskManyRequest prompt = About("", {"one"});
  prompt.mutable_shared()->set_prompt("two");
  EXPECT_EQ(field(prompt), "shared.input");
  v1::AskManyRequest question = About("d", {"one"});
  question.mutable_shared()->mutable_document()->set_text("two");
  EXPECT_EQ(field(question), "shared");
}

// A refusal by the engine in the middle takes back what it has accepted.
TEST(AskMany, WhatWasSubmittedBeforeARefusalIsCancelled) {
  server::ServerOptions options;
  options.engine.max_queued_requests = 2;
  TestServer server(options);
  server.engine().RefuseSubmitAfter(1, absl::ResourceExhaustedError("the queue is full"));
  const grpc::Status status = AskMany(server.channel(), About("", {"one", "two"})).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message().find("questions[1]: "), 0u) << status.error_message();
  EXPECT_TRUE(absl::IsAborted(server.engine().WaitForCancel(1)));
}

}  // namespace
}  // namespace folio::testing
