#pragma once

#include <cstdint>

namespace folio {

// What a step did.
struct StepWork {
  int64_t num_answers = 0;
  int64_t prompt_tokens = 0;
  // Chunks that its tokens completed: each is summarised then, for all layers and heads at once.
  int64_t num_chunks = 0;
  // Of its prompts, as WorkCosts counts.
  double prompt_work = 0;
  // Of its answers, beside the weights.
  double answer_work = 0;
  // With tokens in it.
  int64_t num_prompts = 0;
};

// How many tokens of prompts a step may read beside answers, so that it takes at most `slowdown`
// times as long as a step of these answers alone, or 5 ms longer. Learns from the steps that ran:
// what the answers take, in a step of their own whenever their number has changed much and from
// time to time; what each token of a prompt adds, and each chunk. Changes when a token comes, never
// which. Engine thread only.
class StepPacer {
 public:
  // 0: no bound.
  explicit StepPacer(double slowdown) : slowdown_(slowdown) {}

  // Of a step with num_answers answers; 0: they are to be measured alone.
  int64_t MostPromptTokens(int64_t num_answers) const;

  // The same of any number of answers that take so long alone, as far as is known by now.
  int64_t UsualPromptTokens(int64_t num_answers, double answers_seconds) const;

  // As many tokens of a prompt take as long as a chunk that they complete.
  int64_t ChunkTokens() const;

  // A step took `seconds`.
  void Note(const StepWork& work, double seconds);

 private:
  bool IsMeasured(int64_t num_answers) const;
  void NoteAnswersAlone(int64_t num_answers, double seconds);

  double slowdown_;
  // Of a step of so many answers; 0: none has run.
  int64_t measured_answers_ = 0;
  double answers_seconds_ = 0;
  int64_t steps_since_ = 0;
  double token_seconds_ = 0;  // 0: not known
  double chunk_seconds_ = 0;
};

}  // namespace folio
