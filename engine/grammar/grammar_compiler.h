#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/grammar/compile_trial.h"
#include "engine/grammar/compiled_grammar.h"

namespace folio {

// Compiles grammars for one vocabulary and keeps those that were used last. Thread-safe; takes up
// to some seconds, never on the engine thread.
class GrammarCompiler {
 public:
  // Borrows the tokenizer, which is first looked at by Compile.
  GrammarCompiler(const Tokenizer* tokenizer, int vocab_size,
                  std::string trial_program = DefaultTrialProgram())
      : tokenizer_(tokenizer), vocab_size_(vocab_size), trial_program_(std::move(trial_program)) {}

  // Errors: those of CompileTrial.
  absl::StatusOr<std::shared_ptr<const AnswerGrammar>> Compile(const GrammarSource& source);

  static constexpr int64_t kMaxCacheBytes = 128 << 20;

 private:
  using Result = absl::StatusOr<std::shared_ptr<const AnswerGrammar>>;
  // Refusals are kept as well: they take as long to find out.
  struct Entry {
    std::string key;
    Result result;
    int64_t bytes = 0;
  };
  // What all compilations need.
  struct Tools {
    std::unique_ptr<const GrammarVocabulary> vocabulary;
    std::unique_ptr<const CompileTrial> trial;
  };

  absl::StatusOr<const Tools*> GetTools() FOLIO_EXCLUDES(mutex_);
  const Result* Find(const std::string& key) FOLIO_REQUIRES(mutex_);
  void Keep(const std::string& key, const Result& result) FOLIO_EXCLUDES(mutex_);

  const Tokenizer* const tokenizer_;
  const int vocab_size_;
  const std::string trial_program_;

  Mutex mutex_;
  Tools tools_ FOLIO_GUARDED_BY(mutex_);               // set once, then constant
  std::list<Entry> entries_ FOLIO_GUARDED_BY(mutex_);  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_ FOLIO_GUARDED_BY(mutex_);
  int64_t bytes_ FOLIO_GUARDED_BY(mutex_) = 0;
};

}  // namespace folio
