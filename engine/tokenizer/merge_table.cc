#include "engine/tokenizer/merge_table.h"

namespace folio {
namespace {

constexpr std::pair<int32_t, int32_t> kBasic = {-1, -1};

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

void MergeTable::Add(int32_t left, int32_t right, Merge merge) {
  if (!merges_.try_emplace(PairKey(left, right), merge).second) return;
  const auto symbol = static_cast<size_t>(merge.symbol);
  if (symbol >= parts_.size()) parts_.resize(symbol + 1, kBasic);
  parts_[symbol] = {left, right};
}

const MergeTable::Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void MergeTable::Expand(int32_t symbol, std::vector<int32_t>* basic) const {
  // Depth first, the right part waits: a symbol of n basic ones may be n - 1 merges deep.
  std::vector<int32_t> waiting = {symbol};
  while (!waiting.empty()) {
    const auto next = static_cast<size_t>(waiting.back());
    if (next >= parts_.size() || parts_[next] == kBasic) {
      basic->push_back(waiting.back());
      waiting.pop_back();
    } else {
      waiting.back() = parts_[next].second;
      waiting.push_back(parts_[next].first);
    }
  }
}

}  // namespace folio
