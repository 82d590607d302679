#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar_source.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/types/answer_grammar.h"

namespace folio {

// A vocabulary as the library of grammars wants it. Immutable, thread-safe.
class GrammarVocabulary {
 public:
  // The text of each token; empty: it stands for none, and no grammar allows it.
  explicit GrammarVocabulary(const std::vector<std::string>& texts);
  ~GrammarVocabulary();

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  const std::unique_ptr<const Impl> impl_;
};

// For GrammarVocabulary. `vocab_size` is the model's, which may have tokens that the tokenizer does
// not know.
std::vector<std::string> TextsOfTokens(const Tokenizer& tokenizer, int vocab_size);

// May take as long and as much memory as it likes, and overflow the stack: of a source that comes
// from outside only after CompileTrial. Errors: INVALID_ARGUMENT with what the library says.
absl::StatusOr<std::shared_ptr<const AnswerGrammar>> CompileGrammar(
    const GrammarVocabulary& vocabulary, const GrammarSource& source);

}  // namespace folio
