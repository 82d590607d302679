#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar_source.h"

namespace folio {

// Compiles grammars in processes of their own, each under limits of processor time and memory: the
// library cannot be told to stop, is exponential in some expressions and may overflow the stack.
// What has passed is compiled again where it is used. Thread-safe.
class CompileTrial {
 public:
  // `program`: folio-grammar-trial; `texts`: those of GrammarVocabulary. Errors:
  // FAILED_PRECONDITION without the program, INTERNAL (file descriptors, memory).
  static absl::StatusOr<std::unique_ptr<CompileTrial>> Create(
      std::string program, const std::vector<std::string>& texts);
  ~CompileTrial();

  // OK for a grammar that is compiled within the limits and that answers can follow. Blocks as long
  // as the process runs. Errors: INVALID_ARGUMENT with what is wrong with the source; INTERNAL.
  absl::Status Run(const GrammarSource& source) const;

 private:
  CompileTrial(std::string program, int vocabulary)
      : program_(std::move(program)), vocabulary_(vocabulary) {}

  const std::string program_;
  const int vocabulary_;  // file descriptor
};

// Where folio-grammar-trial is looked for: beside the running program.
std::string DefaultTrialProgram();

// Of a trial process.
inline constexpr int kMaxTrialSeconds = 2;  // of processor time
inline constexpr int64_t kMaxTrialBytes = 512 << 20;
inline constexpr int64_t kMaxGrammarBytes = 32 << 20;
inline constexpr int kTrialVocabularyFd = 3;

}  // namespace folio
