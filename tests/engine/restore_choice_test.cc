#include "engine/runtime/restore_choice.h"

#include "gtest/gtest.h"

namespace folio {
namespace {

constexpr RestoreChoice::Work kWork{.read_bytes = 1000, .prefill_tokens = 10};

TEST(MeasuredRate, SaysNothingUntilEnoughWasMeasured) {
  MeasuredRate rate;
  EXPECT_EQ(rate.SecondsFor(1), std::nullopt);
  rate.Add(100, 0.01);
  EXPECT_EQ(rate.SecondsFor(1), std::nullopt);
  rate.Add(100, 0.09);
  EXPECT_DOUBLE_EQ(*rate.SecondsFor(400), 0.2);
  rate.Add(0, 5);  // nothing was done in that time
  EXPECT_DOUBLE_EQ(*rate.SecondsFor(400), 0.2);
}

TEST(MeasuredRate, FollowsWhatWasMeasuredLast) {
  MeasuredRate rate;
  for (int n = 0; n < 1000; ++n) rate.Add(100, 1);
  EXPECT_NEAR(*rate.SecondsFor(100), 1, 1e-9);
  for (int n = 0; n < 100; ++n) rate.Add(1000, 1);
  EXPECT_NEAR(*rate.SecondsFor(1000), 1, 0.01);
  rate.Add(10, 1000);  // even where a single measurement is longer than all others
  EXPECT_GT(*rate.SecondsFor(1000), 100);
}

TEST(RestoreChoice, ReadsWhileOneOfTheRatesIsNotKnown) {
  RestoreChoice choice;
  EXPECT_FALSE(choice.ShouldPrefill(kWork));
  choice.NoteRead(1, 100);
  EXPECT_FALSE(choice.ShouldPrefill(kWork));
  choice.NotePrefill(1'000'000, 1);
  EXPECT_TRUE(choice.ShouldPrefill(kWork));
  EXPECT_EQ(choice.num_read(), 2);
  EXPECT_EQ(choice.num_prefilled(), 1);

  RestoreChoice other;
  other.NotePrefill(1'000'000, 1);
  EXPECT_FALSE(other.ShouldPrefill(kWork));
}

TEST(RestoreChoice, TakesWhatIsFaster) {
  RestoreChoice choice;
  choice.NoteRead(1'000'000, 1);  // 1 MB/s
  choice.NotePrefill(100, 1);     // 100 tokens/s
  EXPECT_FALSE(choice.ShouldPrefill({.read_bytes = 99'999, .prefill_tokens = 10}));
  EXPECT_FALSE(choice.ShouldPrefill({.read_bytes = 100'000, .prefill_tokens = 10}));
  EXPECT_TRUE(choice.ShouldPrefill({.read_bytes = 100'001, .prefill_tokens = 10}));
  EXPECT_FALSE(choice.ShouldPrefill({.read_bytes = 100'001, .prefill_tokens = 11}));
}

TEST(RestoreChoice, MeasuresADiskThatWasSlowNowAndThen) {
  RestoreChoice choice;
  choice.NoteRead(1, 100);
  choice.NotePrefill(1'000'000, 1);
  int num_reads = 0;
  for (int n = 0; n < 90; ++n) num_reads += !choice.ShouldPrefill(kWork);
  EXPECT_EQ(num_reads, 10);
  for (int n = 0; n < 10; ++n) choice.NoteRead(1'000'000'000, 1);
  EXPECT_FALSE(choice.ShouldPrefill(kWork));
}

}  // namespace
}  // namespace folio
