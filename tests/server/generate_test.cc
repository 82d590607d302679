#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using Event = v1::GenerateEvent;

TEST(Generate, EventsComeInOrderAndAreNumberedDensely) {
  TestServer server;
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("mine");
  Generate call(server.channel(), request);
  server.engine().WaitForRequest();
  server.engine().Emit(QueuedEvent{3});
  EXPECT_EQ(call.Next().event_case(), Event::kAccepted);
  EXPECT_EQ(call.Next().queued().position(), 3u);
  server.engine().Emit(PrefillEvent{7, 2, 4});
  const Event prefill = call.Next();
  EXPECT_EQ(prefill.prefill().total_tokens(), 7u);
  EXPECT_EQ(prefill.prefill().cached_tokens(), 2u);
  EXPECT_EQ(prefill.prefill().processed_tokens(), 4u);
  EXPECT_EQ(prefill.request_id(), "mine");
  server.engine().Emit(Delta("wor", 11));
  EXPECT_EQ(call.Next().delta().text(), "wor");
  DeltaEvent with_logprobs = Delta("ld", 12);
  with_logprobs.logprobs = {{12, -0.5f}};
  with_logprobs.top_logprobs = {{{12, -0.5f}, {13, -2.0f}}};
  server.engine().Emit(with_logprobs);
  const Event delta = call.Next();
  EXPECT_EQ(delta.delta().token_ids(0), 12u);
  EXPECT_FLOAT_EQ(delta.delta().logprobs(0).logprob(), -0.5f);
  EXPECT_EQ(delta.delta().top_logprobs(0).candidates(1).token_id(), 13u);
  server.engine().Emit(Completed(2));
  EXPECT_EQ(call.Next().event_case(), Event::kCompleted);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, AnAddressIsATenantAndARequestHasAPriority) {
  TestServer server;
  v1::GenerateRequest request = Ask("hello");
  request.set_priority(-7);
  Generate first(server.channel(), request);
  const GenerateSpec spec = server.engine().WaitForRequest(1);
  EXPECT_EQ(spec.priority, -7);
  ASSERT_NE(spec.tenant, nullptr);
  Generate second(server.channel(), Ask("hello"));
  EXPECT_EQ(server.engine().WaitForRequest(2).tenant->name, spec.tenant->name);
  for (const RequestId id : {1, 2}) server.engine().Emit(Completed(1), id);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
}

TEST(Generate, ThePromptComesAsLogprobsOrAsAnEcho) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  call.Next();
  server.engine().WaitForRequest();
  PromptEvent rated;
  rated.first_position = 4;
  rated.logprobs = {{12, -0.5f}, {13, -1.5f}};
  rated.top_logprobs = {{{12, -0.5f}}, {{14, -0.25f}}};
  server.engine().Emit(rated);
  const Event prompt = call.Next();
  EXPECT_EQ(prompt.prompt_logprobs().first_position(), 4u);
  EXPECT_EQ(prompt.prompt_logprobs().logprobs(1).token_id(), 13u);
  EXPECT_FLOAT_EQ(prompt.prompt_logprobs().logprobs(1).logprob(), -1.5f);
  EXPECT_EQ(prompt.prompt_logprobs().top_logprobs(1).candidates(0).token_id(), 14u);
  PromptEvent echoed = rated;
  echoed.text = "ab";
  echoed.tokens = {12, 13};
  server.engine().Emit(echoed);
  const v1::Delta echo = call.Next().delta();
  EXPECT_TRUE(echo.echo());
  EXPECT_EQ(echo.text(), "ab");
  EXPECT_EQ(echo.token_ids_size(), 2);
  EXPECT_FLOAT_EQ(echo.logprobs(0).logprob(), -0.5f);
  server.engine().Emit(Delta("x"));
  EXPECT_FALSE(call.Next().delta().echo());
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, CompletedCarriesReasonUsageTimingsAndMemory) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  CompletedEvent completed = Completed(3);
  completed.reason = FinishReason::kStop;
  completed.stop_string = "END";
  completed.usage.prompt_tokens = 7;
  completed.usage.cached_tokens = 4;
  completed.timings.decode_seconds = 0.5;
  completed.memory.device_kv_bytes_peak = 4096;
  server.engine().Emit(completed);
  call.Next();
  const v1::Completed got = call.Next().completed();
  EXPECT_EQ(got.finish_reason(), v1::Completed::FINISH_REASON_STOP);
  EXPECT_EQ(got.stop_string(), "END");
  EXPECT_EQ(got.usage().prompt_tokens(), 7u);
  EXPECT_EQ(got.usage().cached_tokens(), 4u);
  EXPECT_EQ(got.usage().completion_tokens(), 3u);
  EXPECT_DOUBLE_EQ(got.timings().tokens_per_second(), 4.0);  // 2 tokens after the first in 0.5 s
  EXPECT_EQ(got.memory().device_kv_bytes_peak(), 4096u);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, AcceptedFillsInEveryDefault) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  const v1::Accepted accepted = call.Next().accepted();
  EXPECT_TRUE(accepted.strategy().has_full());
  EXPECT_EQ(accepted.sampling().temperature(), 0.0f);
  EXPECT_EQ(accepted.sampling().top_p(), 1.0f);
  EXPECT_EQ(accepted.sampling().repetition_penalty(), 1.0f);
  EXPECT_TRUE(accepted.sampling().has_seed());
  EXPECT_TRUE(accepted.sampling().has_presence_penalty());
  EXPECT_EQ(accepted.max_new_tokens(), 128u);
  EXPECT_EQ(accepted.prompt_tokens(), 7u);  // BOS, space, 5 bytes
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, WhatIsLeftOutOfSamplingIsThatOfTheCheckpointIfTheServerIsToldSo) {
  server::ServerOptions options;
  options.use_generation_config = true;
  TestServer server(options);
  v1::GenerateRequest request = Ask("hello");
  const auto sampling_of = [&](RequestId id) {
    Generate call(server.channel(), request);
    const v1::SamplingParams sampling = call.Next().accepted().sampling();
    server.engine().Emit(Completed(1), id);
    EXPECT_TRUE(call.Finish().ok());
    return sampling;
  };
  const v1::SamplingParams left_out = sampling_of(1);
  EXPECT_EQ(left_out.temperature(), 0.5f);
  EXPECT_EQ(left_out.top_k(), 20u);
  EXPECT_EQ(left_out.top_p(), 0.75f);
  EXPECT_EQ(left_out.repetition_penalty(), 1.25f);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_top_p(1);
  const v1::SamplingParams given = sampling_of(2);
  EXPECT_EQ(given.temperature(), 0.0f);
  EXPECT_EQ(given.top_k(), 0u);
  EXPECT_EQ(given.top_p(), 1.0f);
  EXPECT_EQ(given.repetition_penalty(), 1.25f);
}

TEST(Generate, AConstraintIsCompiledForTheEngine) {
  TestServer server;
  v1::GenerateRequest request = Ask("hi");
  const auto source_of = [&](int number) {
    Generate call(server.channel(), request);
    const GenerateSpec spec = server.engine().WaitForRequest(number);
    const auto* const grammar = dynamic_cast<const FakeGrammar*>(spec.grammar.get());
    return grammar == nullptr ? GrammarSource{} : grammar->source();
  };
  EXPECT_EQ(source_of(1), GrammarSource{});
  using Kind = GrammarSource::Kind;
  request.mutable_constraint()->set_regex("a+");
  EXPECT_EQ(source_of(2), (GrammarSource{Kind::kRegex, "a+"}));
  request.mutable_constraint()->set_json_schema(R"({ "type": "null" })");
  EXPECT_EQ(source_of(3), (GrammarSource{Kind::kJsonSchema, R"({"type":"null"})"}));
  for (const char* const choice : {"yes", "\"no\""}) {
    request.mutable_constraint()->mutable_choices()->add_choices(choice);
  }
  EXPECT_EQ(source_of(4),
            (GrammarSource{Kind::kEbnf, "root ::= \"yes\" | \"\\u0022no\\u0022\"\n"}));
}

TEST(Generate, TheEngineGetsEveryFieldOfTheRequest) {
  TestServer server;
  v1::GenerateRequest request = Ask("hi");
  request.mutable_strategy()->mutable_lm_infinite()->set_window(64);
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_top_k(40);
  request.mutable_sampling()->set_seed(9);
  request.mutable_sampling()->set_frequency_penalty(0.5f);
  request.mutable_sampling()->set_presence_penalty(-1);
  for (const auto& [token, bias] : {std::pair(7u, 2.0f), std::pair(4u, -100.0f)}) {
    v1::TokenBias* const entry = request.mutable_sampling()->add_logit_bias();
    entry->set_token_id(token);
    entry->set_bias(bias);
  }
  request.mutable_sampling()->add_bad_words("bad");
  request.mutable_stopping()->set_max_new_tokens(5);
  request.mutable_stopping()->set_min_new_tokens(2);
  request.mutable_stopping()->add_stop("END");
  request.mutable_stopping()->add_stop_token_ids(4);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_response()->set_logprobs(true);
  request.mutable_response()->set_top_logprobs(3);
  request.mutable_response()->set_prompt_logprobs(true);
  request.mutable_response()->set_prompt_top_logprobs(4);
  request.mutable_response()->set_echo(true);
  Generate call(server.channel(), request);
  const GenerateSpec spec = server.engine().WaitForRequest();
  std::vector<int32_t> tokens = FakeTokenizer::TokensOf("hi");
  tokens.insert(tokens.begin(), FakeTokenizer::kBos);
  EXPECT_EQ(spec.tokens, tokens);
  EXPECT_EQ(spec.attention.strategy.name, "lm_infinite");
  EXPECT_EQ(spec.attention.strategy.IntOr("window", 0), 64);
  EXPECT_EQ(spec.attention.strategy.IntOr("num_sinks", 0), 10);
  EXPECT_FLOAT_EQ(spec.sampling.temperature, 0.5f);
  EXPECT_EQ(spec.sampling.top_k, 40);
  EXPECT_EQ(spec.sampling.seed, 9u);
  EXPECT_FLOAT_EQ(spec.sampling.frequency_penalty, 0.5f);
  EXPECT_FLOAT_EQ(spec.sampling.presence_penalty, -1.0f);
  EXPECT_EQ(spec.sampling.logit_bias, (std::vector<TokenBias>{{4, -100.0f}, {7, 2.0f}}));
  const std::vector<int32_t> bad = FakeTokenizer::TokensOf("bad");
  EXPECT_EQ(spec.sampling.bad_words,
            (std::vector<std::vector<int32_t>>{{bad.begin() + 1, bad.end()}, bad}));
  EXPECT_EQ(spec.stop.max_new_tokens, 5);
  EXPECT_EQ(spec.stop.min_new_tokens, 2);
  EXPECT_EQ(spec.stop.stop_strings, std::vector<std::string>{"END"});
  EXPECT_EQ(spec.stop.stop_token_ids, std::vector<int32_t>{4});
  EXPECT_TRUE(spec.stop.ignore_eos);
  EXPECT_TRUE(spec.logprobs);
  EXPECT_EQ(spec.num_top_logprobs, 3);
  EXPECT_TRUE(spec.prompt_logprobs);
  EXPECT_EQ(spec.num_prompt_top_logprobs, 4);
  EXPECT_TRUE(spec.echo);
  EXPECT_FALSE(spec.deadline.has_value());
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, AQuestionFollowsTheDocumentWithoutBos) {
  TestServer server;
  UploadWhole(&server, "book", "abc");
  Generate call(server.channel(), AskDocument("book", "why"));
  const GenerateSpec spec = server.engine().WaitForRequest();
  EXPECT_EQ(spec.document->id, "book");
  EXPECT_EQ(spec.tokens, FakeTokenizer::TokensOf("why"));
  EXPECT_EQ(call.Next().accepted().prompt_tokens(), 9u);  // BOS, " abc", " why"
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, TokenIdsAreTakenAsTheyAre) {
  TestServer server;
  v1::GenerateRequest request;
  request.mutable_prompt_token_ids()->add_ids(7);
  Generate call(server.channel(), request);
  EXPECT_EQ(server.engine().WaitForRequest().tokens, std::vector<int32_t>{7});
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, TheDeadlineGoesToTheEngine) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"), std::chrono::hours(1));
  const GenerateSpec spec = server.engine().WaitForRequest();
  ASSERT_TRUE(spec.deadline.has_value());
  const auto left = *spec.deadline - std::chrono::steady_clock::now();
  EXPECT_LE(left, std::chrono::minutes(61));  // gRPC rounds it
  EXPECT_GT(left, std::chrono::minutes(55));
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

// Nanoseconds since 1970 in 64 bits end in 2262.
TEST(Generate, ADeadlineBeyondWhatClocksCountIsNone) {
  TestServer server;
  RequestId last_request = 0;
  for (const int64_t hours : {int64_t{3} << 20, int64_t{99999999}}) {
    grpc::ClientContext context;
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_hours(hours, GPR_TIMESPAN)));
    const auto reader = v1::Inference::NewStub(server.channel())->Generate(&context, Ask("hello"));
    const RequestId id = ++last_request;
    EXPECT_FALSE(server.engine().WaitForRequest(id).deadline.has_value()) << hours;
    server.engine().Emit(Completed(1), id);
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
  }
}

TEST(Generate, SilenceIsBrokenByHeartbeatsOfThePhase) {
  TestServer server;
  v1::GenerateRequest request = Ask("hello");
  request.mutable_response()->set_heartbeat_interval_ms(1000);
  Generate call(server.channel(), request);
  EXPECT_EQ(call.Next().event_case(), Event::kAccepted);
  server.clock().Advance(std::chrono::seconds(1));
  EXPECT_EQ(call.Next().heartbeat().phase(), v1::Heartbeat::PHASE_QUEUED);
  server.engine().Emit(PrefillEvent{7, 0, 1});
  EXPECT_EQ(call.Next().event_case(), Event::kPrefill);
  server.clock().Advance(std::chrono::seconds(1));
  EXPECT_EQ(call.Next().heartbeat().phase(), v1::Heartbeat::PHASE_PREFILL);
  server.engine().Emit(Delta("a"));
  EXPECT_EQ(call.Next().event_case(), Event::kDelta);
  server.clock().Advance(std::chrono::milliseconds(500));
  server.engine().Emit(Delta("b"));  // not silent for long: no heartbeat comes in between
  EXPECT_EQ(call.Next().event_case(), Event::kDelta);
  server.clock().Advance(std::chrono::milliseconds(900));
  server.engine().Emit(Delta("c"));
  EXPECT_EQ(call.Next().event_case(), Event::kDelta);
  server.clock().Advance(std::chrono::seconds(1));
  EXPECT_EQ(call.Next().heartbeat().phase(), v1::Heartbeat::PHASE_DECODE);
  server.engine().Emit(Completed(3));
  EXPECT_EQ(call.Next().event_case(), Event::kCompleted);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, ARequestIdIsMadeUpWhenThereIsNone) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  EXPECT_EQ(call.Next().request_id().rfind("req-", 0), 0u);
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(Generate, ManyStreamsAtOnceKeepTheirEventsApart) {
  TestServer server;
  constexpr int kStreams = 16;
  std::vector<std::unique_ptr<Generate>> calls;
  for (int i = 0; i < kStreams; ++i) {
    calls.push_back(std::make_unique<Generate>(server.channel(), Ask("hello")));
    server.engine().WaitForRequest(static_cast<RequestId>(i + 1));
  }
  for (int i = 0; i < kStreams; ++i) {
    server.engine().Emit(Delta(std::to_string(i)), static_cast<RequestId>(i + 1));
    server.engine().Emit(Completed(1), static_cast<RequestId>(i + 1));
  }
  for (int i = 0; i < kStreams; ++i) {
    calls[i]->Next();
    EXPECT_EQ(calls[i]->Next().delta().text(), std::to_string(i));
    EXPECT_TRUE(calls[i]->Finish().ok());
  }
}

}  // namespace
}  // namespace folio::testing
