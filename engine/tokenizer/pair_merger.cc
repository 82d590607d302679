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
  candidates_.clear();
  for (int32_t i = 0; i < size; ++i) {
    parts_[i] = {(*symbols)[i], i - 1, i + 1 < size ? i + 1 : kNone, kNone, kNone};
  }
  for (int32_t i = 0; i < size; ++i) {
    if (FindMerge(i)) candidates_.push_back(Candidate(parts_[i].rank, i));
  }
  std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  while (!candidates_.empty()) {
    const uint64_t best = candidates_.front();
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    candidates_.pop_back();
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
  candidates_.push_back(Candidate(parts_[at].rank, at));
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
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
  return parts_.capacity() * sizeof(Part) + candidates_.capacity() * sizeof(uint64_t);
}

}  // namespace folio
