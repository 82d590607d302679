#pragma once

#include <cstdint>
#include <utility>

#include "engine/runtime/model_runner.h"
#include "engine/sched/sequence.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/types/request.h"

namespace folio {

// Tells a request about its own tokens of the prompt while they are read: their log-probabilities,
// their text, or both. A prompt that is read again is told once. Engine thread only.
class PromptReport {
 public:
  // Whether a request wants any of it.
  static bool IsWanted(const GenerateSpec& spec) { return spec.prompt_logprobs || spec.echo; }

  // Borrows the tokenizer.
  PromptReport(const GenerateSpec& spec, const Tokenizer& tokenizer)
      : with_logprobs_(spec.prompt_logprobs),
        echoes_(spec.echo),
        detokenizer_(tokenizer, IncrementalDetokenizer::Start::kWholeText) {}

  // What the step gives that is told next.
  void Take(ModelRunner::Scores scores) { scores_ = std::move(scores); }
  // Sends what is known of the prompt of `sequence` and was not sent yet. Positions of its tokens
  // are those of the prompt from tokens_begin on.
  void Send(const Sequence& sequence, EventSink* sink);

 private:
  static constexpr int64_t kMaxTokens = 256;  // of an event

  PromptEvent Next(const Sequence& sequence, int64_t end);

  const bool with_logprobs_;
  const bool echoes_;
  IncrementalDetokenizer detokenizer_;
  ModelRunner::Scores scores_;  // of the last step
  int64_t next_ = 0;            // position of the first token that was not sent
};

}  // namespace folio
