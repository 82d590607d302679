// Byte-pair encoding in windows against its definition, on random merges.
#include "engine/tokenizer/window_merger.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

using Symbols = std::vector<int32_t>;
using Sizes = WindowMerger::Sizes;

// Merges over the letters 0, 1, 2, ...: symbols by their texts.
class RandomMerges {
 public:
  RandomMerges(int num_letters, int num_merges, int num_ranks, std::mt19937* random) {
    for (int letter = 0; letter < num_letters; ++letter)
      SymbolOf(std::string(1, char('a' + letter)));
    for (int i = 0; i < num_merges; ++i) {
      const auto size = static_cast<uint32_t>(texts_.size());
      const int32_t left = static_cast<int32_t>((*random)() % size);
      const int32_t right = static_cast<int32_t>((*random)() % size);
      const int32_t merged = SymbolOf(texts_[left] + texts_[right]);
      const auto rank = static_cast<int32_t>((*random)() % static_cast<uint32_t>(num_ranks));
      if (!by_pair_.try_emplace({left, right}, MergeTable::Merge{rank, merged}).second) continue;
      table_.Add(left, right, {rank, merged});
    }
  }

  const MergeTable& table() const { return table_; }

  // The definition, word by word: the best pair of all, the leftmost of equals, until there is
  // none.
  Symbols Encode(Symbols word) const {
    while (true) {
      size_t best = word.size();
      MergeTable::Merge merge;
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        const auto it = by_pair_.find({word[i], word[i + 1]});
        if (it == by_pair_.end() || (best < word.size() && it->second.rank >= merge.rank)) continue;
        best = i;
        merge = it->second;
      }
      if (best == word.size()) return word;
      word[best] = merge.symbol;
      word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

 private:
  int32_t SymbolOf(const std::string& text) {
    const auto [it, is_new] = symbols_.try_emplace(text, static_cast<int32_t>(texts_.size()));
    if (is_new) texts_.push_back(text);
    return it->second;
  }

  std::vector<std::string> texts_;
  std::map<std::string, int32_t> symbols_;
  std::map<std::pair<int32_t, int32_t>, MergeTable::Merge> by_pair_;
  MergeTable table_;
};

Symbols RandomWord(size_t size, int num_letters, std::mt19937* random) {
  Symbols word(size);
  // Runs of one letter, and of the same few letters, are where ties are.
  const uint32_t letters = 1 + (*random)() % static_cast<uint32_t>(num_letters);
  for (int32_t& symbol : word) symbol = static_cast<int32_t>((*random)() % letters);
  return word;
}

Symbols EncodeInWindows(WindowMerger* merger, const Symbols& word) {
  for (const int32_t symbol : word) merger->Add(symbol);
  Symbols tokens;
  merger->Finish([&](int32_t token) { tokens.push_back(token); });
  return tokens;
}

class WindowMergerSizes : public testing::TestWithParam<Sizes> {
  test::SaysTestSeed says_seed_;
};

TEST_P(WindowMergerSizes, EqualsTheDefinitionOnRandomMerges) {
  std::mt19937 random(static_cast<uint32_t>(test::TestSeed()) + 1);
  for (int model = 0; model < 300; ++model) {
    const int letters = 1 + static_cast<int>(random() % 6);
    const int ranks = model % 3 == 0 ? 3 : 1000;
    const RandomMerges merges(letters, 4 + static_cast<int>(random() % 60), ranks, &random);
    WindowMerger merger(merges.table(), GetParam());
    for (int i = 0; i < 8; ++i) {
      const Symbols word = RandomWord(random() % 120, letters, &random);
      ASSERT_EQ(EncodeInWindows(&merger, word), merges.Encode(word)) << "model " << model;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WindowMergerSizes,
                         testing::Values(Sizes{1, 1}, Sizes{2, 1}, Sizes{5, 2}, Sizes{17, 3},
                                         Sizes{}),
                         [](const auto& info) {
                           return std::to_string(info.param.window_symbols) + "and" +
                                  std::to_string(info.param.overlap_tokens);
                         });

// Letters 0 to n - 1 in order, where the pairs further right merge first: whether n is even decides
// about the first pair. No overlap that is smaller than the word is enough.
TEST(WindowMerger, FollowsAChangeBackToTheBeginningOfTheWord) {
  constexpr int32_t kLetters = 1000;
  MergeTable merges;
  for (int32_t i = 0; i + 1 < kLetters; ++i) merges.Add(i, i + 1, {kLetters - i, kLetters + i});
  WindowMerger merger(merges, {.window_symbols = 10, .overlap_tokens = 1});
  for (const int32_t size : {kLetters - 1, kLetters}) {
    Symbols word, expected;
    for (int32_t i = 0; i < size; ++i) word.push_back(i);
    if (size % 2 == 1) expected.push_back(0);
    for (int32_t i = size % 2; i < size; i += 2) expected.push_back(kLetters + i);
    EXPECT_EQ(EncodeInWindows(&merger, word), expected);
  }
}

TEST(WindowMerger, NeedsMemoryForAWindowAndTheTokens) {
  constexpr size_t kSymbols = 1 << 20;
  MergeTable merges;  // 2, 4, 8 and 16 letters
  for (int32_t i = 0; i < 4; ++i) merges.Add(i, i, {i, i + 1});
  WindowMerger merger(merges);
  for (size_t i = 0; i < kSymbols; ++i) merger.Add(0);
  EXPECT_LT(merger.memory_bytes(), kSymbols / 16 * sizeof(int32_t) + (64 << 10));
  Symbols tokens;
  merger.Finish([&](int32_t token) { tokens.push_back(token); });
  EXPECT_EQ(tokens, Symbols(kSymbols / 16, 4));
}

}  // namespace
}  // namespace folio
