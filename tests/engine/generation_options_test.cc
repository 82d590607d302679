// Requests with options of drawing, and log-probabilities of prompts, through the serving loop and
// a real model: against the logits of transformers, and against definitions applied to whole rows
// of logits.
#include <cmath>

#include "engine/attention/attention_registry.h"
#include "engine/model/safetensors_file.h"
#include "engine/runtime/transformer_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/fifths_grammar.h"
#include "tests/engine/letter_tokenizer.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Tokens = std::vector<int32_t>;

class Collector final : public EventSink {
 public:
  void OnEvent(Event event) override {
    if (auto* prompt = std::get_if<PromptEvent>(&event)) {
      EXPECT_TRUE(answer.empty());
      if (logprobs.empty()) first_position = prompt->first_position;
      EXPECT_EQ(prompt->first_position, first_position + std::ssize(logprobs));
      logprobs.insert(logprobs.end(), prompt->logprobs.begin(), prompt->logprobs.end());
      top_logprobs.insert(top_logprobs.end(), prompt->top_logprobs.begin(),
                          prompt->top_logprobs.end());
    }
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      answer.insert(answer.end(), delta->tokens.begin(), delta->tokens.end());
    }
    if (auto* failed = std::get_if<FailedEvent>(&event)) status = failed->status;
    if (auto* done = std::get_if<CompletedEvent>(&event)) reason = done->reason;
    completed = completed || std::holds_alternative<CompletedEvent>(event);
  }
  int64_t first_position = 0;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  Tokens answer;
  bool completed = false;
  FinishReason reason = FinishReason::kLength;
  absl::Status status;
};

// A model behind a serving loop, with small steps.
class Server {
 public:
  explicit Server(const std::string& model_dir)
      : model_(LoadTestModel(model_dir, {.kv_dtype = "fp32"})) {
    EXPECT_GT(vocab(), 8);
  }

  int vocab() const { return model_->config.shape.vocab_size; }
  LoadedModel* model() { return model_.get(); }
  GenerateSpec Spec(Tokens tokens, int max_new_tokens) const {
    GenerateSpec spec;
    spec.tokens = std::move(tokens);
    spec.attention = Full();
    spec.stop.max_new_tokens = max_new_tokens;
    return spec;
  }
  std::shared_ptr<Collector> Submit(GenerateSpec spec) {
    auto sink = std::make_shared<Collector>();
    loop_.Submit(++last_id_, std::make_unique<Generation>(std::move(spec), sink, tokenizer_, kEos));
    return sink;
  }
  DocumentHandle Upload(const Tokens& tokens) {
    const DocumentHandle handle = directory_.Create("book", Full(), nullptr)->handle;
    loop_.documents().Create(handle, Full());
    loop_.documents().Follow(handle, nullptr);
    EXPECT_TRUE(directory_.AddTokens(handle, std::ssize(tokens)).ok());
    loop_.documents().Append(handle, tokens, 0);
    EXPECT_TRUE(directory_.FinishUpload(handle).ok());
    loop_.documents().Finish(handle);
    return handle;
  }
  void Run() {
    while (loop_.RunStep()) {
    }
    EXPECT_EQ(model_->store->used_page_bytes() == 0, directory_.List("", 1).empty());
  }

  inline static const Tokens kEos = {2};

 private:
  AttentionSpec Full() const {
    return *ResolveAttention({{"full", {}}, {}}, {}, model_->attention, {});
  }

  std::unique_ptr<LoadedModel> model_;
  LetterTokenizer tokenizer_{64};
  TransformerRunner runner_{model_->transformer.get()};
  DocumentDirectory directory_{{}};
  EngineLoop loop_{{.scheduler = {48, 20, 16}, .model = model_->attention, .vocab_size = vocab()},
                   model_->store.get(),
                   &runner_,
                   &directory_};
  RequestId last_id_ = 0;
};

// float64 log_softmax of one row.
std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  std::vector<double> out;
  for (const float logit : logits) out.push_back(logit - max - std::log(sum));
  return out;
}

class PromptLogprobs : public testing::TestWithParam<std::string> {
 protected:
  PromptLogprobs() {
    auto file = SafetensorsFile::Open(dir_ + "/golden.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    const OwnedTensor tokens = *file->Tensor("tokens");
    const OwnedTensor logits = *file->Tensor("logits");
    const auto* ids = static_cast<const int32_t*>(tokens.view.data);
    const auto* values = static_cast<const float*>(logits.view.data);
    tokens_.assign(ids, ids + tokens.view.num_elements());
    logits_.assign(values, values + logits.view.num_elements());
  }
  // What transformers gives for the token at `position`, of each token in its place.
  std::vector<double> ExpectedAt(int64_t position) const {
    const size_t vocab = logits_.size() / tokens_.size();
    return LogSoftmax(std::span(logits_).subspan((position - 1) * vocab, vocab));
  }
  void ExpectEqual(const Collector& got, int64_t first_position, size_t num_top) const {
    ASSERT_TRUE(got.completed);
    EXPECT_EQ(got.first_position, first_position);
    ASSERT_EQ(got.logprobs.size(), tokens_.size() - first_position);
    ASSERT_EQ(got.top_logprobs.size(), num_top == 0 ? 0 : got.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      const auto position = static_cast<int64_t>(i) + first_position;
      const std::vector<double> expected = ExpectedAt(position);
      EXPECT_EQ(got.logprobs[i].token, tokens_[position]);
      EXPECT_NEAR(got.logprobs[i].logprob, expected[tokens_[position]], kLimit) << position;
      std::vector<double> best = expected;
      std::ranges::sort(best, std::greater());
      for (size_t n = 0; n < num_top; ++n) {
        const TokenLogprob& top = got.top_logprobs[i].at(n);
        EXPECT_NEAR(top.logprob, best[n], kLimit) << position;
        EXPECT_NEAR(top.logprob, expected[top.token], kLimit) << position;
      }
    }
  }

  // Twice what logits are from those of transformers (golden_test.cc).
  static constexpr double kLimit = 2e-4;
  const std::string dir_ = TestData("golden/" + GetParam());
  Tokens tokens_;
  std::vector<float> logits_;
};

TEST_P(PromptLogprobs, AreTheLogSoftmaxOfTheLogitsOfTransformers) {
  Server server(dir_);
  GenerateSpec spec = server.Spec(tokens_, 1);
  spec.prompt_logprobs = true;
  spec.num_prompt_top_logprobs = 3;
  const auto got = server.Submit(spec);
  server.Run();
  ExpectEqual(*got, 1, 3);
  // What is drawn is what follows.
  const std::vector<double> next = ExpectedAt(std::ssize(tokens_));
  EXPECT_NEAR(next[got->answer.at(0)], *std::ranges::max_element(next), kLimit);
}

TEST_P(PromptLogprobs, OfAQuestionAreThoseBehindItsDocument) {
  Server server(dir_);
  const auto half = std::ssize(tokens_) / 2;
  const DocumentHandle document = server.Upload({tokens_.begin(), tokens_.begin() + half});
  GenerateSpec spec = server.Spec({tokens_.begin() + half, tokens_.end()}, 1);
  spec.document = document;
  spec.prompt_logprobs = true;
  const auto got = server.Submit(spec);
  server.Run();
  ExpectEqual(*got, half + 1, 0);
}

INSTANTIATE_TEST_SUITE_P(Golden, PromptLogprobs,
                         testing::Values("llama/gqa", "llama/tied", "families/neox",
                                         "families/mpt"),
                         [](const auto& info) {
                           return std::string(info.param).substr(info.param.find('/') + 1);
                         });

class GenerationOptions : public testing::Test {
 protected:
  GenerationOptions() { WriteTinyModel({}, dir_.path() + "/model"); }

  // Greedy, as transformers' processors and OpenAI's definition have it, on whole rows of logits:
  // sequence_bias, repetition penalty, frequency and presence, bad words, least number of tokens.
  // Rows of the model's own logits for prompt and answer are given.
  static int32_t Expected(const GenerateSpec& spec, std::vector<float> scores,
                          const Tokens& input_ids, const Tokens& answer,
                          const FifthsGrammar* grammar) {
    const SamplingParams& params = spec.sampling;
    for (const TokenBias& bias : params.logit_bias) scores[bias.token] += bias.bias;
    for (int32_t token = 0; token < std::ssize(scores); ++token) {
      float& score = scores[token];
      if (std::ranges::count(input_ids, token) > 0) {
        score = score < 0 ? score * params.repetition_penalty : score / params.repetition_penalty;
      }
      const auto count = static_cast<float>(std::ranges::count(answer, token));
      score -= count * params.frequency_penalty + (count > 0 ? params.presence_penalty : 0);
    }
    for (const Tokens& word : params.bad_words) {
      const size_t prefix = word.size() - 1;
      if (prefix > input_ids.size()) continue;
      if (std::equal(word.begin(), word.end() - 1, input_ids.end() - prefix)) {
        scores[word.back()] = -INFINITY;
      }
    }
    if (std::ssize(answer) < spec.stop.min_new_tokens) {
      if (!spec.stop.ignore_eos) {
        for (const int32_t token : Server::kEos) scores[token] = -INFINITY;
      }
      for (const int32_t token : spec.stop.stop_token_ids) scores[token] = -INFINITY;
    }
    for (int32_t token = 0; grammar != nullptr && token < std::ssize(scores); ++token) {
      const auto place = static_cast<int>(answer.size());
      if (!grammar->Allows(place, token, {})) scores[token] = -INFINITY;
    }
    return static_cast<int32_t>(std::ranges::max_element(scores) - scores.begin());
  }

  void ExpectAnswer(Server* server, const GenerateSpec& spec, const Tokens& answer,
                    const FifthsGrammar* grammar = nullptr) {
    Tokens all = spec.tokens;
    all.insert(all.end(), answer.begin(), answer.end());
    AttentionPlan plan;
    plan.stages.emplace_back();
    const std::vector<float> logits = AllLogits(server->model(), plan, all, {512});
    Tokens input_ids = spec.tokens;
    Tokens so_far;
    for (const int32_t token : answer) {
      const auto row = logits.begin() + (std::ssize(input_ids) - 1) * server->vocab();
      EXPECT_EQ(token, Expected(spec, {row, row + server->vocab()}, input_ids, so_far, grammar))
          << "token " << so_far.size();
      input_ids.push_back(token);
      so_far.push_back(token);
    }
  }

  ScratchDir dir_;
};

TEST_F(GenerationOptions, AnswersAreThoseOfTheDefinitions) {
  Server server(dir_.path() + "/model");
  GenerateSpec plain = server.Spec(RandomTokens(30, server.vocab(), 11), 40);
  plain.stop.ignore_eos = true;
  const auto unchanged = server.Submit(plain);
  server.Run();
  ExpectAnswer(&server, plain, unchanged->answer);
  const Tokens& usual = unchanged->answer;

  GenerateSpec biased = plain;
  biased.sampling.logit_bias = {{usual[0], -100.0f}, {usual[3], 0.5f}};
  biased.sampling.repetition_penalty = 1.3f;
  GenerateSpec penalised = plain;
  penalised.sampling.frequency_penalty = 0.3f;
  penalised.sampling.presence_penalty = 0.2f;
  GenerateSpec worded = plain;
  // The last one would be begun by the prompt.
  worded.sampling.bad_words = {{usual[1]},
                               {usual[2], usual[3]},
                               {usual[0], usual[1], usual[2]},
                               {plain.tokens[29], usual[0]}};
  GenerateSpec longer = plain;
  longer.stop.stop_token_ids = {usual[0], usual[1]};
  longer.stop.min_new_tokens = 12;
  GenerateSpec all = plain;
  all.sampling = worded.sampling;
  all.sampling.logit_bias = biased.sampling.logit_bias;
  all.sampling.repetition_penalty = 1.1f;
  all.sampling.frequency_penalty = -0.2f;
  all.sampling.presence_penalty = 0.4f;
  all.stop.min_new_tokens = 40;
  all.stop.ignore_eos = false;

  const std::vector<GenerateSpec> specs = {plain, biased, penalised, worded, longer, all};
  std::vector<std::shared_ptr<Collector>> together;
  for (const GenerateSpec& spec : specs) together.push_back(server.Submit(spec));
  server.Run();
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    ASSERT_TRUE(together[i]->completed);
    EXPECT_EQ(together[i]->answer == usual, i == 0);
    EXPECT_GE(together[i]->answer.size(), i == 4 ? 13u : 40u);
    ExpectAnswer(&server, specs[i], together[i]->answer);
  }
}

TEST_F(GenerationOptions, OnesThatAreOffChangeNoBit) {
  if (OnTestBackend()) GTEST_SKIP() << "sums may depend on the rows beside";
  Server server(dir_.path() + "/model");
  GenerateSpec plain = server.Spec(RandomTokens(50, server.vocab(), 12), 20);
  plain.prompt_logprobs = true;
  plain.num_prompt_top_logprobs = 2;
  const auto alone = server.Submit(plain);
  server.Run();
  GenerateSpec other = server.Spec(RandomTokens(70, server.vocab(), 13), 20);
  other.prompt_logprobs = true;
  other.sampling.logit_bias = {{3, 7.0f}};
  other.sampling.bad_words = {{5}, {1, 4}};
  server.Submit(other);
  const auto beside = server.Submit(plain);
  server.Run();
  EXPECT_EQ(beside->answer, alone->answer);
  ASSERT_EQ(beside->logprobs.size(), alone->logprobs.size());
  for (size_t i = 0; i < alone->logprobs.size(); ++i) {
    EXPECT_EQ(beside->logprobs[i].logprob, alone->logprobs[i].logprob);
  }
}

// Greedy answers are the best allowed tokens, counted on the model's whole rows; drawn ones are
// allowed. Others in the batch are as without them.
TEST_F(GenerationOptions, ConstrainedAnswersHaveAllowedTokensOnly) {
  Server server(dir_.path() + "/model");
  const auto fifths = std::make_shared<FifthsGrammar>(server.vocab(), 9);
  GenerateSpec plain = server.Spec(RandomTokens(30, server.vocab(), 14), 16);
  plain.stop.ignore_eos = true;
  const auto alone = server.Submit(plain);
  server.Run();
  GenerateSpec greedy = plain;
  greedy.grammar = fifths;
  GenerateSpec penalised = greedy;
  penalised.sampling.repetition_penalty = 1.5f;
  penalised.sampling.logit_bias = {{4, 3.0f}, {6, -2.0f}};
  GenerateSpec short_one = greedy;
  short_one.stop.max_new_tokens = 4;
  std::vector<GenerateSpec> specs = {plain, greedy, penalised, short_one};
  for (uint64_t seed = 0; seed < 6; ++seed) {
    GenerateSpec& drawn = specs.emplace_back(greedy);
    drawn.stop.ignore_eos = false;
    drawn.sampling.temperature = 2.0f;
    drawn.sampling.seed = seed;
    if (seed % 2 == 0) drawn.sampling.top_p = 0.9f;
    if (seed % 3 == 0) drawn.sampling.top_k = 5;
  }
  std::vector<std::shared_ptr<Collector>> together;
  for (const GenerateSpec& spec : specs) together.push_back(server.Submit(spec));
  server.Run();
  if (!OnTestBackend()) {
    EXPECT_EQ(together[0]->answer, alone->answer);
  }
  for (size_t i = 1; i < specs.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    const Tokens& answer = together[i]->answer;
    EXPECT_EQ(together[i]->status, absl::OkStatus());
    ASSERT_TRUE(together[i]->completed);
    const Tokens ending = specs[i].stop.ignore_eos ? Tokens{} : Server::kEos;
    for (int place = 0; place < std::ssize(answer); ++place) {
      EXPECT_TRUE(fifths->Allows(place, answer[place], ending)) << answer[place];
    }
    const bool is_short = i == 3;
    EXPECT_EQ(together[i]->reason, is_short ? FinishReason::kLength : FinishReason::kStop);
    if (i < 4) {
      EXPECT_EQ(std::ssize(answer), is_short ? 4 : 9);
    }
    if (i < 3) ExpectAnswer(&server, specs[i], answer, fifths.get());
  }
}

TEST_F(GenerationOptions, AnAnswerThatCannotGoOnFails) {
  Server server(dir_.path() + "/model");
  GenerateSpec stuck = server.Spec(RandomTokens(30, server.vocab(), 15), 16);
  stuck.grammar = std::make_shared<FifthsGrammar>(server.vocab(), 9, 3);
  GenerateSpec ruled_out = stuck;
  ruled_out.grammar = std::make_shared<FifthsGrammar>(server.vocab(), 9);
  for (int32_t token = 2; token < server.vocab(); token += 5) {
    ruled_out.sampling.bad_words.push_back({token});
  }
  const auto dead_end = server.Submit(stuck);
  const auto no_words = server.Submit(ruled_out);
  server.Run();
  EXPECT_EQ(dead_end->status, absl::FailedPreconditionError("a dead end"));
  EXPECT_EQ(dead_end->answer.size(), 3u);
  EXPECT_EQ(no_words->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(no_words->answer.size(), 2u);
}

}  // namespace
}  // namespace folio::test
