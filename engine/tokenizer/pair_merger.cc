#include "engine/tokenizer/pair_merger.h"

#include <algorithm>
#include <functional>

namespace folio {
namespace {

uint64_t Candidate(int32_t rank, int32_t at) {
  return uint64_t{static_cast<uint32_t>(rank)} << 32 | static_cast<uint32_t>(at);
}

}  // namespace

void PairMerger::Merge(std::vector<int32_t>* symbols) {
  const auto size = static_cast<int32_t>(symbols->size());
  if (size < 2) return;
  parts_.resize(symbols->size());
  first_.clear();
  for (int32_t i = 0; i < size; ++i) {
    parts_[i] = {(*symbols)[i], i - 1, i + 1 < size ? i + 1 : kNone, kNone, kNone};
  }
  for (int32_t i = size; i-- > 0;) {
    if (FindMerge(i)) first_.push_back(Candidate(parts_[i].rank, i));
  }
  std::sort(first_.begin(), first_.end(), std::greater<>());
  while (!first_.empty() || !later_.empty()) {
    const uint64_t best = TakeBest();
    const auto at = static_cast<int32_t>(best & 0xFFFFFFFF);
    if (parts_[at].rank == static_cast<int32_t>(best >> 32)) MergeAt(at);
  }
  symbols->clear();
  for (int32_t at = 0; at != kNone; at = parts_[at].after) symbols->push_back(parts_[at].symbol);
}

bool PairMerger::FindMerge(int32_t at) {
  Part& part = parts_[at];
  const MergeTable::Merge* merge =
      part.after == kNone ? nullptr : merges_.Find(part.symbol, parts_[part.after].symbol);
  part.rank = merge == nullptr ? kNone : merge->rank;
  part.merged = merge == nullptr ? kNone : merge->symbol;
  return merge != nullptr;
}

void PairMerger::Push(int32_t at) {
  later_.push_back(Candidate(parts_[at].rank, at));
  std::push_heap(later_.begin(), later_.end(), std::greater<>());
}

uint64_t PairMerger::TakeBest() {
  const bool is_first = later_.empty() || (!first_.empty() && first_.back() < later_.front());
  std::vector<uint64_t>& from = is_first ? first_ : later_;
  if (!is_first) std::pop_heap(later_.begin(), later_.end(), std::greater<>());
  const uint64_t best = from.back();
  from.pop_back();
  return best;
}

void PairMerger::MergeAt(int32_t at) {
  Part& left = parts_[at];
  Part& right = parts_[left.after];
  left.symbol = left.merged;
  left.after = right.after;
  right.rank = kNone;
  if (left.after != kNone) parts_[left.after].before = at;
  if (FindMerge(at)) Push(at);
  if (left.before != kNone && FindMerge(left.before)) Push(left.before);
}

size_t PairMerger::memory_bytes() const {
  return parts_.capacity() * sizeof(Part) +
         (first_.capacity() + later_.capacity()) * sizeof(uint64_t);
}

}  // namespace folio
