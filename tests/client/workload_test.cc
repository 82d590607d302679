#include "loadtest/workload.h"

#include <gtest/gtest.h>

#include <map>

#include "loadtest/prompt_builder.h"

namespace folio::loadtest {
namespace {

TEST(Workload, ChoicesFollowTheirWeights) {
  Options options;
  options.strategies = {{"full", 1}, {"long_heads", 3}};
  options.prompt_tokens = {{64, 0.8}, {4096, 0.2}};
  options.cancel_fraction = 0.25;
  options.max_cancel_delay_seconds = 2;
  Workload workload(options);
  std::map<std::string, int> strategies;
  std::map<uint32_t, int> prompts;
  int num_cancels = 0;
  constexpr int kCount = 10000;
  for (int i = 0; i < kCount; ++i) {
    const RequestSpec spec = workload.Next();
    ++strategies[spec.strategy];
    ++prompts[spec.prompt_tokens];
    EXPECT_TRUE(spec.greedy);
    if (!spec.cancel_delay_seconds) continue;
    ++num_cancels;
    EXPECT_GE(*spec.cancel_delay_seconds, 0);
    EXPECT_LE(*spec.cancel_delay_seconds, 2);
  }
  EXPECT_NEAR(strategies["long_heads"], 0.75 * kCount, 0.02 * kCount);
  EXPECT_NEAR(prompts[64], 0.8 * kCount, 0.02 * kCount);
  EXPECT_NEAR(num_cancels, 0.25 * kCount, 0.02 * kCount);
}

TEST(Workload, CancellationsAndProbesDoNotChangeTheRequests) {
  Options options;
  options.prompt_tokens = {{64, 1}, {128, 1}};
  Options with_cancels = options;
  with_cancels.cancel_fraction = 0.5;
  Workload plain(options);
  Workload other(with_cancels);
  for (int i = 0; i < 100; ++i) {
    other.NextProbe();
    const RequestSpec a = plain.Next();
    const RequestSpec b = other.Next();
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  }
}

TEST(PromptBuilder, PromptsHaveTheirLength) {
  const PromptBuilder prompts({{"one", 1}, {"three", 3}, {"two", 2}});
  const std::map<std::string, int> tokens = {{"one", 1}, {"three", 3}, {"two", 2}};
  for (const uint32_t length : {2, 3, 17, 1000}) {
    std::istringstream words(prompts.BuildPrompt(length, 5));
    uint32_t num_tokens = 1;
    for (std::string word; words >> word;) num_tokens += tokens.at(word);
    EXPECT_EQ(num_tokens, length);
  }
  EXPECT_NE(prompts.BuildPrompt(100, 5), prompts.BuildPrompt(100, 6));
}

TEST(PromptBuilder, RequestsCanBeMadeAgain) {
  const PromptBuilder prompts({{"one", 1}, {"two", 1}});
  Options options;
  options.sampled_fraction = 1;
  RequestSpec spec = Workload(options).Next();
  spec.strategy = "lm_infinite";
  const v1::GenerateRequest request = prompts.BuildRequest(spec, options);
  EXPECT_EQ(request.SerializeAsString(), prompts.BuildRequest(spec, options).SerializeAsString());
  EXPECT_TRUE(request.strategy().has_lm_infinite());
  EXPECT_GT(request.sampling().temperature(), 0);
  EXPECT_EQ(request.response().heartbeat_interval_ms(), options.heartbeat_interval_ms);
}

TEST(LoadOptions, WeightedListsAreParsed) {
  const auto counts = ParseWeightedCounts("64:0.8,4096:0.2,7");
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(*counts, (WeightedCounts{{64, 0.8}, {4096, 0.2}, {7, 1.0}}));
  for (const char* bad : {"", "x:1", "0:1", "64:0", "64:-1", "64:1:1", "64:nan", "64,"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseWeightedCounts(bad).status())) << bad;
  }
  EXPECT_TRUE(ParseWeightedNames("full:1,default").ok());
  EXPECT_FALSE(ParseWeightedNames("best:1").ok());
}

TEST(LoadOptions, GoodputLimitsAreParsed) {
  const auto goodput = ParseGoodput("ttft:500,e2el:5000");
  ASSERT_TRUE(goodput.ok()) << goodput.status();
  EXPECT_EQ(goodput->ttft_ms, 500);
  EXPECT_EQ(goodput->tpot_ms, std::nullopt);
  EXPECT_EQ(goodput->e2el_ms, 5000);
  EXPECT_FALSE(ParseGoodput("latency:5").ok());
}

}  // namespace
}  // namespace folio::loadtest
