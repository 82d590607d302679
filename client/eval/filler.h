// Text that hides a needle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/eval/token_counter.h"

namespace folio::eval {

// Sentences of a text: cut after '.', '!' or '?' that is followed by white space, with white space
// inside made single spaces. Sentences without a letter are dropped.
std::vector<std::string> SplitSentences(const std::string& text);

// The five grass sentences of the pass key task (Mohtashami and Jaggi 2023).
std::vector<std::string> GrassSentences();

// Where trials begin to read the filler.
enum class FillerStart { kBeginning, kAnywhere };

// An endless text: its sentences in a circle, each with its number of tokens. Const after
// construction.
class Filler {
 public:
  struct Sentence {
    std::string text;
    uint64_t num_tokens;
  };

  // Measures each sentence as it stands within a text. Takes as many sentences as make `max_tokens`
  // tokens, or all.  Errors: INVALID_ARGUMENT without sentences; of the counter.
  static absl::StatusOr<Filler> Create(const std::vector<std::string>& sentences, FillerStart start,
                                       const TokenCounter& count, uint64_t max_tokens);

  FillerStart start() const { return start_; }

  size_t num_sentences() const { return sentences_.size(); }
  // The sentence at this place of the circle.
  const Sentence& at(size_t idx) const { return sentences_[idx % sentences_.size()]; }

 private:
  Filler(std::vector<Sentence> sentences, FillerStart start)
      : sentences_(std::move(sentences)), start_(start) {}

  std::vector<Sentence> sentences_;
  FillerStart start_;
};

}  // namespace folio::eval
