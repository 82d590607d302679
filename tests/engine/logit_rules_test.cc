// The changes of logits against the definitions: those of transformers' processors, written out as
// they are there over rows of all tokens, and of OpenAI's penalties.
#include "engine/sampling/logit_rules.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

constexpr int kVocab = 7;

using Tokens = std::vector<int32_t>;

// NoBadWordsLogitsProcessor: a word of one token is masked always; of a longer one the last token
// is, where the last tokens of input_ids equal the others. (Where those are all of input_ids
// transformers looks away: there is no prompt of one word's beginning alone, for it has a BOS.)
std::vector<bool> BadWordMask(const std::vector<Tokens>& words, const Tokens& input_ids) {
  std::vector<bool> mask(kVocab, false);
  for (const Tokens& word : words) {
    if (word.size() > input_ids.size() + 1) continue;
    bool matches = true;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      matches = matches && input_ids[input_ids.size() - (word.size() - 1) + i] == word[i];
    }
    if (matches) mask[word.back()] = true;
  }
  return mask;
}

// For each token: bias + what comes after it. SequenceBiasLogitsProcessor with sequences of one
// token adds the bias; OpenAI subtracts count * frequency_penalty + (count > 0) *
// presence_penalty, counting the answer; MinNewTokensLengthLogitsProcessor masks the ending tokens
// while the answer has fewer than min_new_tokens.
std::vector<LogitChange> Expected(const SamplingParams& params, const Tokens& ending,
                                  size_t min_new_tokens, const Tokens& prompt,
                                  const Tokens& answer) {
  std::vector<LogitChange> changes(kVocab);
  for (const TokenBias& bias : params.logit_bias) changes[bias.token].before = bias.bias;
  Tokens input_ids = prompt;
  input_ids.insert(input_ids.end(), answer.begin(), answer.end());
  const std::vector<bool> bad = BadWordMask(params.bad_words, input_ids);
  for (int32_t token = 0; token < kVocab; ++token) {
    changes[token].token = token;
    const auto count = static_cast<float>(std::count(answer.begin(), answer.end(), token));
    changes[token].after =
        -(count * params.frequency_penalty) - (count > 0 ? params.presence_penalty : 0.0f);
    const bool early =
        answer.size() < min_new_tokens && std::count(ending.begin(), ending.end(), token) > 0;
    if (early || bad[token]) changes[token].after = -INFINITY;
  }
  return changes;
}

void ExpectEqual(const LogitRules& rules, const std::vector<LogitChange>& expected) {
  std::vector<LogitChange> got(kVocab);
  int32_t last = -1;
  for (const LogitChange& change : rules.changes()) {
    EXPECT_GT(change.token, last);
    last = change.token;
    got[change.token] = change;
  }
  for (int32_t token = 0; token < kVocab; ++token) {
    EXPECT_EQ(got[token].before, expected[token].before) << token;
    EXPECT_FLOAT_EQ(got[token].after, expected[token].after) << token;
    EXPECT_EQ(rules.Masks(token), std::isinf(expected[token].after)) << token;
  }
}

TEST(LogitRules, AreThoseOfTheDefinitions) {
  const test::SaysTestSeed seed;
  std::mt19937_64 random(test::TestSeed());
  const auto draw = [&](size_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocab);
    return tokens;
  };
  for (int round = 0; round < 200; ++round) {
    SamplingParams params;
    if (round % 2 == 1) params.frequency_penalty = 0.25f;
    if (round % 3 == 1) params.presence_penalty = -1.5f;
    if (round % 5 != 0) params.logit_bias = {{5, -100.0f}, {0, 2.5f}};
    for (size_t n = random() % 4; n > 0; --n) params.bad_words.push_back(draw(1 + random() % 3));
    const Tokens ending = round % 4 == 0 ? Tokens{} : Tokens{6, 2, 6};
    const int min_new_tokens = static_cast<int>(random() % 4);
    const Tokens prompt = draw(random() % 4);
    LogitRules rules(params, ending, min_new_tokens);
    rules.Begin(prompt);
    Tokens all = prompt;
    Tokens answer;
    for (int step = 0; step < 12; ++step) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", step " << step);
      ExpectEqual(rules, Expected(params, ending, min_new_tokens, prompt, answer));
      if (!rules.FollowTokens()) {  // whatever comes next
        Tokens longer = answer;
        longer.push_back(draw(1)[0]);
        ExpectEqual(rules, Expected(params, ending, min_new_tokens, prompt, longer));
      }
      answer.push_back(draw(1)[0]);
      all.push_back(answer.back());
      rules.Add(all);
    }
  }
}

TEST(LogitRules, AreNeededForEachOption) {
  EXPECT_FALSE(LogitRules::AreNeeded({.temperature = 1, .repetition_penalty = 2}, 0));
  EXPECT_TRUE(LogitRules::AreNeeded({}, 1));
  EXPECT_TRUE(LogitRules::AreNeeded({.frequency_penalty = -1}, 0));
  EXPECT_TRUE(LogitRules::AreNeeded({.presence_penalty = 1}, 0));
  EXPECT_TRUE(LogitRules::AreNeeded({.logit_bias = {{1, 1}}}, 0));
  EXPECT_TRUE(LogitRules::AreNeeded({.bad_words = {{1}}}, 0));
}

}  // namespace
}  // namespace folio
