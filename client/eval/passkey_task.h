// Pass key retrieval: a number hidden in filler text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/eval/filler.h"
#include "client/eval/task.h"
#include "client/eval/token_counter.h"

namespace folio::eval {

// The first run of decimal digits in `text`; empty if there is none.
std::string FirstDigits(const std::string& text);

// What differs between the published generators: the keys, and how much of the answer is read. The
// prompt is the same for all.
struct PasskeyRules {
  std::string name;
  uint64_t smallest_key = 0;
  uint64_t largest_key = 0;
  uint32_t max_new_tokens = 8;
};

// "landmark" (Mohtashami and Jaggi 2023), "long_heads" (Lu et al. 2024), "lm_infinite" (Han et al.
// 2024), "coca" (Zhu et al. 2023).
const std::vector<PasskeyRules>& AllPasskeyRules();

// Source: Mohtashami and Jaggi 2023 (Landmark Attention), in the short form that LongHeads and
// LM-Infinite are measured with. A random number is named twice between two sentences of the
// filler; the depths are spread evenly over the trials. Const after construction.
class PasskeyTask final : public EvalTask {
 public:
  //   count       must stay valid as long as the task
  //   num_depths  trials take turns on so many depths from 0 to 1; 0: each has its own
  PasskeyTask(Filler filler, TokenCounter count, uint64_t seed,
              PasskeyRules rules = AllPasskeyRules().front(), int num_depths = 0)
      : filler_(std::move(filler)),
        count_(std::move(count)),
        seed_(seed),
        rules_(std::move(rules)),
        num_depths_(num_depths) {}

  std::string name() const override { return "passkey"; }
  uint32_t max_new_tokens() const override { return rules_.max_new_tokens; }
  // Prompt and answer together come as close below `target_tokens` as whole sentences allow.
  absl::StatusOr<Trial> MakeTrial(uint64_t target_tokens, int trial_idx,
                                  int num_trials) const override;
  // Whether the first digits of the answer are the key.
  bool IsCorrect(const Trial& trial, const std::string& answer) const override;

 private:
  struct Layout;
  // The context with `num_sentences` sentences of filler around the needle.
  std::string BuildContext(const Layout& layout, size_t num_sentences) const;
  // Finds the number of sentences, by the measured sentences first, then by counting the whole
  // prompt.
  absl::StatusOr<Trial> FitToLength(const Layout& layout, uint64_t max_prompt_tokens) const;

  const Filler filler_;
  const TokenCounter count_;
  const uint64_t seed_;
  const PasskeyRules rules_;
  const int num_depths_;
};

}  // namespace folio::eval
