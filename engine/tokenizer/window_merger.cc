#include "engine/tokenizer/window_merger.h"

namespace folio {

void WindowMerger::MergeWindow() {
  while (!JoinWindow()) now_.overlap_tokens *= 2;
}

// Merges the new symbols together with those of the last tokens. False if the first of these tokens
// comes out as another one: then the new symbols may change tokens before it, too.
bool WindowMerger::JoinWindow() {
  const size_t first = tokens_.size() - std::min(tokens_.size(), now_.overlap_tokens);
  joint_.clear();
  for (size_t i = first; i < tokens_.size(); ++i) merges_.Expand(tokens_[i], &joint_);
  // At least as many new symbols in the next window, so that the work is linear whatever the
  // tokens.
  now_.window_symbols = std::max(now_.window_symbols, joint_.size());
  joint_.insert(joint_.end(), new_.begin(), new_.end());
  merger_.Merge(&joint_);
  if (first > 0 && joint_.front() != tokens_[first]) return false;
  tokens_.resize(first);
  tokens_.insert(tokens_.end(), joint_.begin(), joint_.end());
  new_.clear();
  return true;
}

size_t WindowMerger::memory_bytes() const {
  return merger_.memory_bytes() +
         (new_.capacity() + joint_.capacity() + tokens_.size()) * sizeof(int32_t);
}

}  // namespace folio
