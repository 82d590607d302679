// The part of AttentionWorker that attends to chosen single tokens (LM-Infinite's middle tokens).
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/cpu_attention.h"
#include "engine/backend/cpu/sealed_codec.h"

namespace folio {

void AttentionWorker::BeginTokenScores() {
  num_choices_ = 0;
  RowRange choosing;
  KeyRange scanned;
  for (int row = rows_.begin; row < rows_.end; ++row) {
    const int64_t i = Position(row);
    const KeyRange keys = KeysOf(stage(), plan().retention.num_sinks, i);
    if (!ChoosesTokens(plan().top_tokens, plan().prompt_tokens, i, block_.layer)) continue;
    if (NumTokensTaken(plan().top_tokens, keys.size()) == 0) continue;
    if (num_choices_ == 0) {
      choosing.begin = row;
      scanned = keys;
    }
    choosing.end = row + 1;
    scanned = {std::min(scanned.begin, keys.begin), std::max(scanned.end, keys.end)};
    for (int head = 0; head < group_; ++head) {
      if (num_choices_ == choices_.size()) choices_.emplace_back();
      TokenChoice& choice = choices_[num_choices_++];
      choice.query = query(row, head);
      choice.candidates = keys;
      choice.best.clear();
    }
  }
  if (num_choices_ == 0) return;
  RotateQueries(choosing, stage(), &turned_);
  for (int64_t page = scanned.begin / page_tokens_; page * page_tokens_ < scanned.end; ++page) {
    pages_.push_back(page);
  }
}

void AttentionWorker::ScoreTokens(int64_t page) {
  const KvGeometry& g = context_->geometry();
  token_scores_.resize(static_cast<size_t>(cpu::kPageRows) * page_tokens_);
  for (size_t begin = 0; begin < num_choices_;) {
    // Later rows may read the page sealed.
    const int query = choices_[begin].query;
    const bool sealed = IsSealedFor(page, query);
    size_t end = begin + 1;
    while (end < num_choices_ && end - begin < cpu::kPageRows &&
           choices_[end].query == query + static_cast<int>(end - begin) &&
           IsSealedFor(page, choices_[end].query) == sealed) {
      ++end;
    }
    const std::byte* const keys =
        page_reader_.Read(*context_, *context_->rope, Slice(page, sealed), {.sealed = sealed}).k;
    context_->kernels->score_page(g.dtype, keys, page_tokens_, dim_,
                                  &turned_[int64_t{query} * dim_], static_cast<int>(end - begin),
                                  token_scores_.data(), page_tokens_);
    const float* scores = token_scores_.data();
    for (; begin < end; ++begin, scores += page_tokens_) RankTokens(page, scores, &choices_[begin]);
  }
}

void AttentionWorker::RankTokens(int64_t page, const float* scores, TokenChoice* choice) {
  const int64_t first = page * page_tokens_;
  const int64_t begin = std::max(first, choice->candidates.begin);
  const int64_t end = std::min(first + page_tokens_, choice->candidates.end);
  for (int64_t token = begin; token < end; ++token) {
    RankToken({scores[token - first], token}, plan().top_tokens.count, &choice->best);
  }
}

void AttentionWorker::RankToken(ScoredToken token, int count, std::vector<ScoredToken>* best) {
  if (std::ssize(*best) == count) {
    if (!(token.score > best->back().score)) return;
    best->pop_back();
  }
  // Behind equal scores: the smaller index wins.
  const auto at = std::find_if(best->begin(), best->end(),
                               [&](const ScoredToken& other) { return other.score < token.score; });
  best->insert(at, token);
}

void AttentionWorker::BeginTokenValues() {
  wanted_.clear();
  next_wanted_ = 0;
  int row = 0;
  for (size_t n = 0; n < num_choices_; ++n) {
    for (const ScoredToken& token : choices_[n].best) {
      wanted_.push_back({token.token, row++, choices_[n].query});
    }
  }
  values_.assign(static_cast<size_t>(row) * dim_, 0.0f);
  std::sort(wanted_.begin(), wanted_.end(), [](const WantedToken& a, const WantedToken& b) {
    return a.token != b.token ? a.token < b.token : a.row < b.row;
  });
  for (const WantedToken& wanted : wanted_) {
    const int64_t page = wanted.token / page_tokens_;
    if (pages_.empty() || pages_.back() != page) pages_.push_back(page);
  }
}

void AttentionWorker::ReadTokenValues(int64_t page) {
  const KvGeometry& g = context_->geometry();
  const int64_t end = (page + 1) * page_tokens_;
  for (; next_wanted_ < wanted_.size() && wanted_[next_wanted_].token < end; ++next_wanted_) {
    const WantedToken& wanted = wanted_[next_wanted_];
    const int token = static_cast<int>(wanted.token % page_tokens_);
    float* const to = &values_[static_cast<size_t>(wanted.row) * dim_];
    if (IsSealedFor(page, wanted.query)) {
      ReadSealedValue(g, Slice(page, true), token, to);
    } else {
      ReadValue(g, Slice(page, false) + g.key_bytes(), token, to);
    }
  }
}

// In the order of their scores, whatever the order they were read in.
void AttentionWorker::FoldTokens() {
  const float* value = values_.data();
  for (size_t n = 0; n < num_choices_; ++n) {
    const TokenChoice& choice = choices_[n];
    const float bias = context_->setup->alibi_slopes.empty()
                           ? 0.0f
                           : -Slope(choice.query) * static_cast<float>(stage().distance_limit);
    float* state = State(choice.query);
    for (const ScoredToken& token : choice.best) {
      const float score = token.score + bias;
      const float max = std::max(state[dim_], score);
      const float keep = std::exp(state[dim_] - max);
      const float weight = std::exp(score - max);
      for (int d = 0; d < dim_; ++d) state[d] = state[d] * keep + weight * value[d];
      state[dim_] = max;
      state[dim_ + 1] = state[dim_ + 1] * keep + weight;
      value += dim_;
    }
  }
}

}  // namespace folio
