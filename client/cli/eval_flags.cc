#include "client/cli/eval_flags.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "client/document_source.h"
#include "client/eval/filler.h"
#include "client/eval/kv_retrieval_task.h"
#include "client/eval/passkey_task.h"
#include "client/eval/token_counter.h"
#include "client/status.h"

namespace folio::cli {
namespace {

// The text of --filler as sentences.
absl::StatusOr<std::vector<std::string>> FillerSentences(const std::string& filler) {
  if (filler == "grass") return eval::GrassSentences();
  const auto source = client::FileSource::Open(filler);
  if (!source.ok()) return AsFileError(source.status());
  const auto text = (*source)->Read(0, (*source)->size_bytes());
  if (!text.ok()) return AsFileError(text.status());
  return eval::SplitSentences(*text);
}

}  // namespace

const char* TaskName(EvalTaskKind kind) {
  if (kind == EvalTaskKind::kKvRetrieval) return "kv-retrieval";
  return kind == EvalTaskKind::kNeedle ? "needle" : "passkey";
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << content;
  file.close();
  return file ? absl::OkStatus() : AsFileError(absl::UnknownError("cannot write " + path));
}

std::string ReadIfThere(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.resize(text.rfind('\n') + 1);
  return text;
}

absl::StatusOr<RecordFile> RecordFile::Create(const std::string& path, const std::string& begin) {
  RecordFile result;
  if (path.empty()) return result;
  result.file_.open(path);
  result.file_ << begin << std::flush;
  if (!result.file_) return AsFileError(absl::UnknownError("cannot write " + path));
  return result;
}

absl::StatusOr<std::vector<eval::Method>> MethodsOf(const EvalFlags& flags) {
  std::vector<eval::Method> all;
  for (const std::string& text : flags.strategies) {
    auto methods = eval::ParseMethods(text);
    if (!methods.ok()) return methods.status();
    all.insert(all.end(), methods->begin(), methods->end());
  }
  return all;
}

absl::StatusOr<eval::EvalPlan> MakePlan(const EvalFlags& flags, const v1::ServerInfo& info,
                                        const client::CancelToken& cancel) {
  eval::EvalPlan plan;
  auto methods = MethodsOf(flags);
  if (!methods.ok()) return methods.status();
  plan.methods = *std::move(methods);
  plan.lengths_tokens = flags.tokens;
  if (flags.tokens.empty()) {
    for (const uint64_t multiple : flags.multiples) {
      plan.lengths_tokens.push_back(multiple * info.model().max_position_embeddings());
    }
  }
  plan.num_trials = flags.num_trials;
  plan.concurrency = flags.concurrency;
  plan.max_inline_prompt_bytes = info.limits().max_inline_prompt_bytes();
  plan.cancel = cancel;
  return plan;
}

absl::StatusOr<std::unique_ptr<eval::EvalTask>> MakeTask(EvalTaskKind kind, const EvalFlags& flags,
                                                         const eval::EvalPlan& plan,
                                                         client::Client& client) {
  const eval::TokenCounter counter = eval::ServerTokenCounter(client, plan.cancel);
  if (kind == EvalTaskKind::kKvRetrieval) {
    return std::make_unique<eval::KvRetrievalTask>(counter, flags.seed);
  }
  const auto sentences = FillerSentences(flags.filler);
  if (!sentences.ok()) return sentences.status();
  uint64_t max_length_tokens = 0;
  for (const uint64_t length : plan.lengths_tokens) {
    max_length_tokens = std::max(max_length_tokens, length);
  }
  const bool grass = flags.filler == "grass";
  auto filler = eval::Filler::Create(
      *sentences, grass ? eval::FillerStart::kBeginning : eval::FillerStart::kAnywhere, counter,
      2 * max_length_tokens);
  if (!filler.ok()) return filler.status();
  const auto& all = eval::AllPasskeyRules();
  const auto rules = std::find_if(all.begin(), all.end(),
                                  [&](const auto& rule) { return rule.name == flags.generator; });
  return std::make_unique<eval::PasskeyTask>(*std::move(filler), counter, flags.seed, *rules,
                                             kind == EvalTaskKind::kNeedle ? flags.num_depths : 0);
}

absl::Status FirstError(const std::vector<eval::TrialResult>& results) {
  for (const eval::TrialResult& result : results) {
    if (result.status.ok()) continue;
    return absl::Status(result.status.code(),
                        absl::StrCat("some trials have no answer (marked !), the first: ",
                                     client::FormatError(result.status)));
  }
  return absl::OkStatus();
}

}  // namespace folio::cli
