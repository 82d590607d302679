#include "engine/grammar/grammar_compiler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {

absl::StatusOr<std::shared_ptr<const AnswerGrammar>> GrammarCompiler::Compile(
    const GrammarSource& source) {
  const std::string key =
      absl::StrCat(source.owner, "/", static_cast<int>(source.kind), ":", source.text);
  {
    const MutexLock lock(&mutex_);
    if (const Result* const known = Find(key)) return *known;
  }
  FOLIO_ASSIGN_OR_RETURN(const Tools* const tools, GetTools());
  const absl::Status tried = tools->trial->Run(source);
  if (!tried.ok() && tried.code() != absl::StatusCode::kInvalidArgument) return tried;
  Result result = tried.ok() ? CompileGrammar(*tools->vocabulary, source) : Result(tried);
  Keep(key, result);
  return result;
}

absl::StatusOr<const GrammarCompiler::Tools*> GrammarCompiler::GetTools() {
  const MutexLock lock(&mutex_);
  if (tools_.trial == nullptr) {
    const std::vector<std::string> texts = TextsOfTokens(*tokenizer_, vocab_size_);
    auto trial = CompileTrial::Create(trial_program_, texts);
    if (!trial.ok()) return trial.status();
    tools_.vocabulary = std::make_unique<const GrammarVocabulary>(texts);
    tools_.trial = *std::move(trial);
  }
  return &tools_;
}

const GrammarCompiler::Result* GrammarCompiler::Find(const std::string& key) {
  const auto at = index_.find(key);
  if (at == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, at->second);
  return &entries_.front().result;
}

void GrammarCompiler::Keep(const std::string& key, const Result& result) {
  const MutexLock lock(&mutex_);
  if (index_.contains(key)) return;  // another thread was faster
  const int64_t bytes =
      static_cast<int64_t>(2 * key.size() + sizeof(Entry)) + (result.ok() ? (*result)->bytes() : 0);
  entries_.push_front({key, result, bytes});
  index_[key] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ > kMaxCacheBytes && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace folio
