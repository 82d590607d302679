#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using ::testing::EndsWith;
using ::testing::UnorderedElementsAre;

struct BadRequest {
  const char* name;
  std::function<void(v1::GenerateRequest*)> spoil;
  const char* field;
};

void PrintTo(const BadRequest& bad, std::ostream* out) { *out << bad.name; }

void AddBias(uint32_t token, float bias, v1::GenerateRequest* request) {
  v1::TokenBias* const entry = request->mutable_sampling()->add_logit_bias();
  entry->set_token_id(token);
  entry->set_bias(bias);
}

class Validation : public ::testing::TestWithParam<BadRequest> {};

TEST_P(Validation, NamesTheField) {
  server::ServerOptions options;
  options.max_new_tokens = 1000;
  options.max_inline_prompt_bytes = 100;
  TestServer server(options);
  v1::GenerateRequest request = Ask("hello");
  GetParam().spoil(&request);
  Generate call(server.channel(), request);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.field(), GetParam().field);
  EXPECT_EQ(details.info.reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(details.info.domain(), "folio");
  EXPECT_FALSE(details.retry.has_value());
  EXPECT_EQ(server.engine().num_running(), 0);
}

using Request = v1::GenerateRequest;
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Fields, Validation,
    ::testing::Values(
        BadRequest{"NoInput", [](Request* r) { r->clear_prompt(); }, "input"},
        BadRequest{"EmptyPrompt", [](Request* r) { r->set_prompt(""); }, "prompt"},
        BadRequest{"LongPrompt", [](Request* r) { r->set_prompt(std::string(101, 'x')); },
                   "prompt"},
        BadRequest{"NoTokenIds", [](Request* r) { r->mutable_prompt_token_ids(); },
                   "prompt_token_ids.ids"},
        BadRequest{"TokenIdOutOfRange",
                   [](Request* r) {
                     r->mutable_prompt_token_ids()->add_ids(5);
                     r->mutable_prompt_token_ids()->add_ids(0xFFFFFFFF);
                   },
                   "prompt_token_ids.ids[1]"},
        BadRequest{"NoQuestion", [](Request* r) { r->mutable_document()->set_document_id("d"); },
                   "document.question"},
        BadRequest{"BadDocumentId", [](Request* r) { *r = AskDocument("a/b", "why"); },
                   "document.document_id"},
        BadRequest{"LongRequestId", [](Request* r) { r->set_request_id(std::string(129, 'x')); },
                   "request_id"},
        BadRequest{
            "BadStrategy",
            [](Request* r) { r->mutable_strategy()->mutable_lm_infinite()->set_window(513); },
            "strategy"},
        BadRequest{"UnknownStrategy",
                   [](Request* r) { r->mutable_strategy()->mutable_long_heads(); }, "strategy"},
        BadRequest{"NanTemperature",
                   [](Request* r) { r->mutable_sampling()->set_temperature(kNan); },
                   "sampling.temperature"},
        BadRequest{"InfiniteTemperature",
                   [](Request* r) { r->mutable_sampling()->set_temperature(kInfinity); },
                   "sampling.temperature"},
        BadRequest{"NegativeTemperature",
                   [](Request* r) { r->mutable_sampling()->set_temperature(-1); },
                   "sampling.temperature"},
        BadRequest{"ZeroTopP", [](Request* r) { r->mutable_sampling()->set_top_p(0); },
                   "sampling.top_p"},
        BadRequest{"NanTopP", [](Request* r) { r->mutable_sampling()->set_top_p(kNan); },
                   "sampling.top_p"},
        BadRequest{"HugeTopK", [](Request* r) { r->mutable_sampling()->set_top_k(0xFFFFFFFF); },
                   "sampling.top_k"},
        BadRequest{"MinPOfOne", [](Request* r) { r->mutable_sampling()->set_min_p(1); },
                   "sampling.min_p"},
        BadRequest{"ZeroPenalty",
                   [](Request* r) { r->mutable_sampling()->set_repetition_penalty(0); },
                   "sampling.repetition_penalty"},
        BadRequest{"HighFrequencyPenalty",
                   [](Request* r) { r->mutable_sampling()->set_frequency_penalty(2.1f); },
                   "sampling.frequency_penalty"},
        BadRequest{"NanPresencePenalty",
                   [](Request* r) { r->mutable_sampling()->set_presence_penalty(kNan); },
                   "sampling.presence_penalty"},
        BadRequest{"TooManyBiases",
                   [](Request* r) {
                     for (uint32_t i = 0; i < 1025; ++i) AddBias(i, 1, r);
                   },
                   "sampling.logit_bias"},
        BadRequest{"NanBias",
                   [](Request* r) { AddBias(7, kNan, r); },
                   "sampling.logit_bias[7]"},
        BadRequest{"LargeBias",
                   [](Request* r) { AddBias(7, -100.5f, r); },
                   "sampling.logit_bias[7]"},
        BadRequest{"BiasedTokenOutOfRange", [](Request* r) { AddBias(0xFFFFFFFF, 1, r); },
                   "sampling.logit_bias[4294967295]"},
        BadRequest{"BiasedTwice",
                   [](Request* r) {
                     AddBias(7, 1, r);
                     AddBias(7, 2, r);
                   },
                   "sampling.logit_bias"},
        BadRequest{"EmptyConstraint", [](Request* r) { r->mutable_constraint(); }, "constraint"},
        BadRequest{"NoChoices", [](Request* r) { r->mutable_constraint()->mutable_choices(); },
                   "constraint.choices"},
        BadRequest{"EmptyChoice",
                   [](Request* r) {
                     r->mutable_constraint()->mutable_choices()->add_choices("");
                   },
                   "constraint.choices"},
        BadRequest{"EmptyRegex", [](Request* r) { r->mutable_constraint()->set_regex(""); },
                   "constraint.regex"},
        BadRequest{"LongRegex",
                   [](Request* r) {
                     r->mutable_constraint()->set_regex(std::string(8193, 'a'));
                   },
                   "constraint.regex"},
        BadRequest{"RegexThatDoesNotCompile",
                   [](Request* r) { r->mutable_constraint()->set_regex("unclosed ("); },
                   "constraint.regex"},
        BadRequest{"SchemaThatIsNoJson",
                   [](Request* r) { r->mutable_constraint()->set_json_schema("{"); },
                   "constraint.json_schema"},
        BadRequest{"ConstraintThatGoesOn",
                   [](Request* r) {
                     r->mutable_constraint()->set_regex("a");
                     r->mutable_stopping()->set_ignore_eos(true);
                   },
                   "stopping.ignore_eos"},
        BadRequest{"ConstraintWithALeastLength",
                   [](Request* r) {
                     r->mutable_constraint()->set_regex("a");
                     r->mutable_stopping()->set_min_new_tokens(2);
                   },
                   "stopping.min_new_tokens"},
        BadRequest{"TooManyBadWords",
                   [](Request* r) {
                     for (int i = 0; i < 65; ++i) r->mutable_sampling()->add_bad_words("x");
                   },
                   "sampling.bad_words"},
        BadRequest{"EmptyBadWord", [](Request* r) { r->mutable_sampling()->add_bad_words(""); },
                   "sampling.bad_words"},
        BadRequest{"LongBadWord",
                   [](Request* r) { r->mutable_sampling()->add_bad_words(std::string(257, 'x')); },
                   "sampling.bad_words"},
        BadRequest{"MoreThanTheMost",
                   [](Request* r) {
                     r->mutable_stopping()->set_max_new_tokens(5);
                     r->mutable_stopping()->set_min_new_tokens(6);
                   },
                   "stopping.min_new_tokens"},
        BadRequest{"LowPriority", [](Request* r) { r->set_priority(-101); }, "priority"},
        BadRequest{"HighPriority", [](Request* r) { r->set_priority(101); }, "priority"},
        BadRequest{"NoNewTokens", [](Request* r) { r->mutable_stopping()->set_max_new_tokens(0); },
                   "stopping.max_new_tokens"},
        BadRequest{"TooManyNewTokens",
                   [](Request* r) { r->mutable_stopping()->set_max_new_tokens(1001); },
                   "stopping.max_new_tokens"},
        BadRequest{"TooManyStops",
                   [](Request* r) {
                     for (int i = 0; i < 17; ++i) r->mutable_stopping()->add_stop("x");
                   },
                   "stopping.stop"},
        BadRequest{"EmptyStop", [](Request* r) { r->mutable_stopping()->add_stop(""); },
                   "stopping.stop"},
        BadRequest{"LongStop",
                   [](Request* r) { r->mutable_stopping()->add_stop(std::string(257, 'x')); },
                   "stopping.stop"},
        BadRequest{"StopTokenOutOfRange",
                   [](Request* r) { r->mutable_stopping()->add_stop_token_ids(100000); },
                   "stopping.stop_token_ids[0]"},
        BadRequest{"TooManyLogprobs",
                   [](Request* r) { r->mutable_response()->set_top_logprobs(21); },
                   "response.top_logprobs"},
        BadRequest{"TooManyPromptLogprobs",
                   [](Request* r) { r->mutable_response()->set_prompt_top_logprobs(21); },
                   "response.prompt_top_logprobs"},
        BadRequest{"FastHeartbeat",
                   [](Request* r) { r->mutable_response()->set_heartbeat_interval_ms(99); },
                   "response.heartbeat_interval_ms"},
        BadRequest{"SlowHeartbeat",
                   [](Request* r) { r->mutable_response()->set_heartbeat_interval_ms(60001); },
                   "response.heartbeat_interval_ms"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ValidationOfAll, EveryBadFieldIsReported) {
  TestServer server;
  v1::GenerateRequest request = AskDocument("a/b", "");
  request.set_request_id(std::string(129, 'x'));
  request.mutable_strategy()->mutable_lm_infinite()->set_window(513);
  request.mutable_sampling()->set_temperature(-1);
  request.mutable_sampling()->set_top_p(0);
  request.mutable_stopping()->set_max_new_tokens(0);
  request.mutable_stopping()->add_stop("");
  request.mutable_stopping()->add_stop_token_ids(100000);
  request.mutable_response()->set_top_logprobs(21);
  request.mutable_response()->set_heartbeat_interval_ms(99);
  request.mutable_response()->set_evidence_spans(65);
  Generate call(server.channel(), request);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(
      DetailsOf(status).fields(),
      UnorderedElementsAre("document.document_id", "document.question", "request_id", "strategy",
                           "sampling.temperature", "sampling.top_p", "stopping.max_new_tokens",
                           "stopping.stop", "stopping.stop_token_ids[0]", "response.top_logprobs",
                           "response.heartbeat_interval_ms", "response.evidence_spans"));
  EXPECT_THAT(status.error_message(), EndsWith("(and 11 other fields)"));
  EXPECT_EQ(server.engine().num_running(), 0);
}

TEST(ValidationOfAll, HoldsForListDocuments) {
  TestServer server;
  v1::ListDocumentsRequest request;
  request.set_page_size(1001);
  request.set_page_token("a/b");
  grpc::ClientContext context;
  v1::ListDocumentsResponse response;
  const grpc::Status status =
      v1::Documents::NewStub(server.channel())->ListDocuments(&context, request, &response);
  EXPECT_THAT(DetailsOf(status).fields(), UnorderedElementsAre("page_size", "page_token"));
}

TEST(ValidationOfAll, HoldsForTheHeaderOfAnUpload) {
  TestServer server;
  v1::DocumentHeader header;
  header.set_document_id("a/b");
  header.set_display_name(std::string(1025, 'x'));
  header.set_upload_token("short");
  header.mutable_position()->mutable_linear();
  Upload upload(server.channel());
  upload.Header(header);
  const grpc::Status status = upload.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(DetailsOf(status).fields(),
              UnorderedElementsAre("header.document_id", "header.display_name",
                                   "header.upload_token", "header.position"));
}

// As many violations as there are fields stay far below what gRPC clients take as trailers, 8 KiB.
TEST(ValidationOfAll, TheTrailersStaySmall) {
  v1::GenerateRequest request = AskDocument(std::string(1 << 20, '/'), "why");
  request.mutable_strategy()->mutable_named()->set_name(std::string(1 << 20, 'n'));
  request.mutable_sampling()->set_temperature(-1);
  request.mutable_sampling()->set_top_k(0xFFFFFFFF);
  request.mutable_sampling()->set_top_p(0);
  request.mutable_sampling()->set_min_p(1);
  request.mutable_sampling()->set_repetition_penalty(0);
  request.mutable_sampling()->set_frequency_penalty(3);
  request.mutable_sampling()->set_presence_penalty(3);
  AddBias(0xFFFFFFFF, 101, &request);
  request.mutable_sampling()->add_bad_words("");
  TestServer server;
  Generate call(server.channel(), request);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(DetailsOf(status).fields().size(), 12u);
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 4096u);
}

TEST(ValidationLimits, TheBoundsThemselvesAreAllowed) {
  TestServer server;
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id(std::string(128, 'x'));
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_min_p(0);
  request.mutable_sampling()->set_repetition_penalty(10);
  request.mutable_sampling()->set_frequency_penalty(-2);
  request.mutable_sampling()->set_presence_penalty(2);
  for (uint32_t i = 0; i < 200; ++i) AddBias(i, i % 2 == 0 ? 100.0f : -100.0f, &request);
  for (int i = 0; i < 64; ++i) request.mutable_sampling()->add_bad_words(std::string(256, 'x'));
  request.mutable_stopping()->set_max_new_tokens(1);
  request.mutable_stopping()->set_min_new_tokens(1);
  for (int i = 0; i < 16; ++i) request.mutable_stopping()->add_stop(std::string(256, 'x'));
  request.mutable_response()->set_top_logprobs(20);
  request.mutable_response()->set_prompt_top_logprobs(20);
  request.mutable_response()->set_heartbeat_interval_ms(100);
  Generate call(server.channel(), request);
  server.engine().WaitForRequest();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(ValidationLimits, TheDefaultLengthFitsASmallLimit) {
  server::ServerOptions options;
  options.max_new_tokens = 10;
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  EXPECT_EQ(server.engine().WaitForRequest().stop.max_new_tokens, 10);
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
}

}  // namespace
}  // namespace folio::testing
