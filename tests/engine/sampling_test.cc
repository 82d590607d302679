#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "engine/sampling/sampler.h"
#include "engine/sampling/stop_criteria.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

const std::vector<float> kLogits = {0.0f, std::log(4.0f), std::log(2.0f),
                                    std::log(3.0f)};  // p: .1 .4 .2 .3

std::map<int32_t, int> Frequencies(const SamplingParams& params, int draws) {
  Sampler sampler;
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.Draw(kLogits, params, nullptr, i, -1).token];
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOnATie) {
  Sampler sampler;
  EXPECT_EQ(sampler.Draw(kLogits, {}, nullptr, 0, -1).token, 1);
  EXPECT_EQ(sampler.Draw(std::vector<float>{1, 5, 5}, {}, nullptr, 0, -1).token, 1);
}

TEST(Sampler, SaysWhenALogitIsNotFinite) {
  Sampler sampler;
  const SamplingParams params;
  LogitsTask draw;
  draw.sampling = &params;
  for (const LogitsTask& task : {draw, LogitsTask{.scored_token = 0}}) {
    for (const size_t size : {1, 31, 32, 33, 1000}) {
      std::vector<float> logits(size, -std::numeric_limits<float>::max());
      EXPECT_TRUE(sampler.Do(task, logits).finite);
      for (const size_t at : {size_t{0}, size / 2, size - 1}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          logits[at] = bad;
          EXPECT_FALSE(sampler.Do(task, logits).finite) << bad << " at " << at << " of " << size;
          logits[at] = 1;
        }
      }
    }
  }
}

// 20,000 draws: the standard error of each share is below 0.0035, five of them below 0.018.
TEST(Sampler, DrawsInProportionToTheProbabilities) {
  const auto counts = Frequencies({.temperature = 1, .seed = 5}, 20000);
  const double expected[] = {0.1, 0.4, 0.2, 0.3};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(counts.at(i) / 20000.0, expected[i], 0.018) << i;
}

TEST(Sampler, TemperatureSharpens) {
  // p^2 normalised: .01 .16 .04 .09 of .30
  const auto counts = Frequencies({.temperature = 0.5, .seed = 5}, 20000);
  EXPECT_NEAR(counts.at(1) / 20000.0, 0.16 / 0.30, 0.018);
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  EXPECT_EQ(Frequencies({.temperature = 1, .top_k = 2}, 2000).size(), 2u);      // .4 .3
  EXPECT_EQ(Frequencies({.temperature = 1, .top_p = 0.5f}, 2000).size(), 2u);   // .4, then .3
  EXPECT_EQ(Frequencies({.temperature = 1, .top_p = 0.39f}, 2000).size(), 1u);  // .4 alone
  EXPECT_EQ(Frequencies({.temperature = 1, .min_p = 0.45f}, 2000).size(), 3u);  // >= .18
  EXPECT_EQ(Frequencies({.temperature = 1, .top_k = 1}, 50).begin()->first, 1);
}

TEST(Sampler, SameSeedAndStepGiveTheSameTokenOtherSeedsDiffer) {
  Sampler a, b;
  int differences = 0;
  for (int i = 0; i < 100; ++i) {
    const SamplingParams one{.temperature = 1, .seed = 1};
    const SamplingParams two{.temperature = 1, .seed = 2};
    EXPECT_EQ(a.Draw(kLogits, one, nullptr, i, -1).token,
              b.Draw(kLogits, one, nullptr, i, -1).token);
    differences +=
        a.Draw(kLogits, one, nullptr, i, -1).token != b.Draw(kLogits, two, nullptr, i, -1).token;
  }
  EXPECT_GT(differences, 20);
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  Sampler sampler;
  SeenTokens seen(3);
  seen.Add(0);
  seen.Add(1);
  const SamplingParams params{.repetition_penalty = 2.0f};
  EXPECT_EQ(sampler.Draw(std::vector<float>{3, -1, 1.6f}, params, &seen, 0, -1).token, 2);
  EXPECT_EQ(sampler.Draw(std::vector<float>{-3, -1, -1.9f}, params, &seen, 0, -1).token, 2);
}

// As transformers orders its processors: sequence_bias, repetition_penalty, then masks; and a
// penalty that is subtracted comes where vLLM has it, after the one that divides.
TEST(Sampler, ChangesComeBeforeAndAfterTheRepetitionPenalty) {
  Sampler sampler;
  SeenTokens seen(3);
  seen.Add(0);
  const SamplingParams params{.repetition_penalty = 2.0f};
  const std::vector<float> logits = {1, 0, 3.5f};
  // (1 + 6) / 2 = 3.5, a tie with token 2; were the bias added later: 1 / 2 + 6.
  const auto token = [&](std::vector<LogitChange> changes) {
    return sampler.Draw(logits, params, &seen, 0, -1, changes).token;
  };
  EXPECT_EQ(token({{0, 6, 0}}), 0);
  EXPECT_EQ(token({{0, 5.9f, 0}}), 2);
  EXPECT_EQ(token({{0, 8, -1}}), 0);  // (1 + 8) / 2 - 1 = 3.5
  EXPECT_EQ(token({{0, 8, -1.1f}}), 2);
  EXPECT_EQ(token({{0, 100, -INFINITY}, {2, 0, -INFINITY}}), 1);
}

// The walk from the most likely token down, over all of them, sorted.
TEST(Sampler, DrawsWithoutFiltersAreThoseOfTheSortedWalk) {
  std::mt19937 random(5);
  Sampler sampler;
  for (const int vocab : {1, 2, 17, 300, 5000}) {
    for (const float spread : {0.0f, 1.0f, 8.0f}) {
      std::vector<float> logits(vocab);
      std::normal_distribution<float> normal(0, 1);
      for (float& logit : logits) logit = std::round(4 * spread * normal(random)) / 4;  // with ties
      std::vector<int32_t> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
      const SamplingParams params{.temperature = 0.7f, .seed = 3};
      for (uint64_t step = 0; step < 40; ++step) {
        double total = 0;
        for (const int32_t token : order)
          total += std::exp((logits[token] - logits[order[0]]) / 0.7f);
        double target = UniformAt(params.seed, step) * total;
        size_t at = 0;
        while (at + 1 < order.size()) {
          target -= std::exp((logits[order[at]] - logits[order[0]]) / 0.7f);
          if (target < 0) break;
          ++at;
        }
        EXPECT_EQ(sampler.Draw(logits, params, nullptr, step, -1).token, order[at]);
      }
    }
  }
}

TEST(Sampler, OnlyAllowedTokensAreDrawn) {
  Sampler sampler;
  std::vector<float> logits(70, 0.0f);
  logits[5] = 9;
  logits[66] = 3;
  logits[40] = 2;
  const std::vector<uint32_t> allowed = {1u << 7, 1u << 8, 1u << 2};  // 7, 40, 66
  EXPECT_EQ(sampler.Draw(logits, {}, nullptr, 0, -1, {}, &allowed).token, 66);
  const std::vector<LogitChange> changes = {{40, 5, 0}};
  EXPECT_EQ(sampler.Draw(logits, {}, nullptr, 0, -1, changes, &allowed).token, 40);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 5}, SamplingParams{.temperature = 5, .top_k = 2}}) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < 500; ++i) {
      ++counts[sampler.Draw(logits, params, nullptr, i, -1, {}, &allowed).token];
    }
    EXPECT_EQ(counts.size(), params.top_k == 0 ? 3u : 2u);
    EXPECT_EQ(counts.count(7) + counts.count(40) + counts.count(66), counts.size());
  }
  const std::vector<uint32_t> none(3, 0u);
  EXPECT_EQ(sampler.Draw(logits, {.temperature = 1}, nullptr, 0, -1, {}, &none).token, 0);
}

TEST(Sampler, AMaskedTokenIsNeverDrawn) {
  Sampler sampler;
  const std::vector<LogitChange> changes = {{1, 5, -INFINITY}, {3, 0, -INFINITY}};
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1}, SamplingParams{.temperature = 100, .top_k = 3},
        SamplingParams{.temperature = 1, .top_p = 0.999f, .min_p = 0.001f}}) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < 3000; ++i) {
      ++counts[sampler.Draw(kLogits, params, nullptr, i, -1, changes).token];
    }
    EXPECT_EQ(counts.size(), 2u);  // .1 and .2
    EXPECT_EQ(counts.count(1) + counts.count(3), 0u);
  }
}

TEST(Sampler, WhereAllAreMaskedSomeTokenIsDrawn) {
  Sampler sampler;
  std::vector<LogitChange> changes;
  for (int32_t token = 0; token < 4; ++token) changes.push_back({token, 0, -INFINITY});
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params{.temperature = temperature, .top_k = 2};
    EXPECT_EQ(sampler.Draw(kLogits, params, nullptr, 0, -1, changes).token, 0);
  }
}

TEST(Sampler, LogprobsAreOfTheModelNotOfTheFilters) {
  Sampler sampler;
  const Sample sample = sampler.Draw(kLogits, {.temperature = 0.3f, .top_k = 1}, nullptr, 0, 2);
  EXPECT_NEAR(sample.logprob, std::log(0.4), 1e-6);
  ASSERT_EQ(sample.top_logprobs.size(), 2u);
  EXPECT_EQ(sample.top_logprobs[1].token, 3);
  EXPECT_NEAR(sample.top_logprobs[1].logprob, std::log(0.3), 1e-6);
  const std::vector<LogitChange> changes = {{1, 7, -INFINITY}};
  const Sample changed = sampler.Draw(kLogits, {}, nullptr, 0, 1, changes);
  EXPECT_EQ(changed.token, 3);
  EXPECT_NEAR(changed.logprob, std::log(0.3), 1e-6);
  EXPECT_EQ(changed.top_logprobs[0].token, 1);
}

TEST(Sampler, ARatedTokenHasItsRivals) {
  Sampler sampler;
  LogitsTask task;
  task.scored_token = 2;
  EXPECT_TRUE(sampler.Do(task, kLogits).top_logprobs.empty());
  task.num_top_logprobs = 2;
  const Sample sample = sampler.Do(task, kLogits);
  EXPECT_EQ(sample.token, 2);
  EXPECT_NEAR(sample.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(sample.top_logprobs.size(), 2u);
  EXPECT_EQ(sample.top_logprobs[0].token, 1);
  EXPECT_NEAR(sample.top_logprobs[0].logprob, std::log(0.4), 1e-6);
}

TEST(StopStringMatcher, FindsAStopStringThatSpansPieces) {
  StopStringMatcher matcher({"END"});
  EXPECT_EQ(matcher.Feed("one E").text, "one ");
  EXPECT_EQ(matcher.Feed("N").text, "");
  const auto result = matcher.Feed("D two");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.stop, "END");
}

TEST(StopStringMatcher, GivesBackWhatWasNoStopStringAfterAll) {
  StopStringMatcher matcher({"END"});
  EXPECT_EQ(matcher.Feed("EN").text, "");
  EXPECT_EQ(matcher.Feed("EMY").text, "ENEMY");
  EXPECT_EQ(matcher.Feed("E").text, "");
  EXPECT_EQ(matcher.Flush(), "E");
}

TEST(StopStringMatcher, TakesTheEarliestOfSeveral) {
  StopStringMatcher matcher({"later", "la"});
  EXPECT_EQ(matcher.Feed("see you la").stop, "la");
  StopStringMatcher other({"bb", "abc"});
  const auto result = other.Feed("xabcbb");
  EXPECT_EQ(result.text, "x");
  EXPECT_EQ(result.stop, "abc");
}

TEST(StopStringMatcher, OnlyWholeCharactersLeave) {
  StopStringMatcher matcher({"\xA9x"});  // begins inside a character
  EXPECT_EQ(matcher.Feed("\xC3\xA9").text, "");
  EXPECT_EQ(matcher.Feed("y").text, "\xC3\xA9y");
}

}  // namespace
}  // namespace folio
