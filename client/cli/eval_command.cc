#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_line.h"
#include "client/eval/eval_runner.h"
#include "client/eval/filler.h"
#include "client/eval/methods.h"
#include "client/eval/passkey_task.h"
#include "client/eval/report.h"
#include "client/eval/token_counter.h"
#include "client/status.h"

namespace folio::cli {
namespace {

struct EvalFlags {
  std::vector<std::string> strategies = {"full", "lm_infinite", "long_heads"};
  std::vector<uint64_t> multiples = {1, 2, 4, 8, 16, 32, 64};
  std::vector<uint64_t> tokens;
  int num_trials = 50;
  int concurrency = 4;
  std::string filler = "grass";
  uint64_t seed = 1;
  std::string output;
};

// The text of --filler as sentences.
absl::StatusOr<std::vector<std::string>> FillerSentences(const std::string& filler) {
  if (filler == "grass") return eval::GrassSentences();
  const auto source = client::FileSource::Open(filler);
  if (!source.ok()) return AsFileError(source.status());
  const auto text = (*source)->Read(0, (*source)->size_bytes());
  if (!text.ok()) return AsFileError(text.status());
  return eval::SplitSentences(*text);
}

absl::StatusOr<eval::EvalPlan> MakePlan(const EvalFlags& flags, const v1::ServerInfo& info,
                                        const Invocation& invocation) {
  eval::EvalPlan plan;
  for (const std::string& text : flags.strategies) {
    auto methods = eval::ParseMethods(text);
    if (!methods.ok()) return methods.status();
    plan.methods.insert(plan.methods.end(), methods->begin(), methods->end());
  }
  plan.lengths_tokens = flags.tokens;
  if (flags.tokens.empty()) {
    for (const uint64_t multiple : flags.multiples) {
      plan.lengths_tokens.push_back(multiple * info.model().max_position_embeddings());
    }
  }
  plan.num_trials = flags.num_trials;
  plan.concurrency = flags.concurrency;
  plan.max_inline_prompt_bytes = info.limits().max_inline_prompt_bytes();
  plan.cancel = invocation.cancel;
  return plan;
}

absl::StatusOr<eval::PasskeyTask> MakeTask(const EvalFlags& flags, uint64_t max_length_tokens,
                                           client::Client& client, const Invocation& invocation) {
  const auto sentences = FillerSentences(flags.filler);
  if (!sentences.ok()) return sentences.status();
  const eval::TokenCounter counter = eval::ServerTokenCounter(client, invocation.cancel);
  const bool grass = flags.filler == "grass";
  auto filler = eval::Filler::Create(
      *sentences, grass ? eval::FillerStart::kBeginning : eval::FillerStart::kAnywhere, counter,
      2 * max_length_tokens);
  if (!filler.ok()) return filler.status();
  return eval::PasskeyTask(*std::move(filler), counter, flags.seed);
}

// What the answers say, on stdout, and --output.
absl::Status Report(const EvalFlags& flags, const std::vector<eval::TrialResult>& results,
                    Invocation& invocation) {
  const std::vector<eval::Row> rows = eval::SummarizeResults(results);
  if (invocation.json) {
    const nlohmann::ordered_json line = {{"summary",
                                          {{"task", "passkey"},
                                           {"filler", flags.filler},
                                           {"seed", flags.seed},
                                           {"trials", flags.num_trials},
                                           {"cells", eval::RowsToJson(rows)}}}};
    invocation.console.out << line.dump() << std::endl;
  } else {
    invocation.console.out << "pass key accuracy in percent, by length in tokens\n"
                           << eval::FormatTable(rows) << std::flush;
  }
  if (!flags.output.empty()) {
    std::ofstream file(flags.output);
    file << eval::FormatCsv(results);
    file.close();
    if (!file) return AsFileError(absl::UnknownError("cannot write " + flags.output));
  }
  for (const eval::TrialResult& result : results) {
    if (result.status.ok()) continue;
    return absl::Status(result.status.code(),
                        absl::StrCat("some trials have no answer (marked !), the first: ",
                                     client::FormatError(result.status)));
  }
  return absl::OkStatus();
}

absl::Status EvalPasskey(const EvalFlags& flags, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo({.cancel = invocation.cancel});
  if (!info.ok()) return info.status();
  const auto plan = MakePlan(flags, *info, invocation);
  if (!plan.ok()) return plan.status();
  uint64_t max_length_tokens = 0;
  for (const uint64_t length : plan->lengths_tokens) {
    max_length_tokens = std::max(max_length_tokens, length);
  }
  const auto task = MakeTask(flags, max_length_tokens, **client, invocation);
  if (!task.ok()) return task.status();

  ProgressLine line(invocation.console);
  Progress progress{.label = "passkey", .unit = ProgressUnit::kTrials};
  progress.total =
      plan->lengths_tokens.size() * plan->methods.size() * static_cast<size_t>(flags.num_trials);
  const auto results = eval::RunEval(**client, *task, *plan, [&](const eval::TrialResult& result) {
    ++progress.done;
    line.Update(progress);
    if (!invocation.json) return;
    const nlohmann::ordered_json trial = {{"trial", eval::TrialToJson(result)}};
    invocation.console.out << trial.dump(-1, ' ', false,
                                         nlohmann::ordered_json::error_handler_t::replace)
                           << std::endl;
  });
  line.Clear();
  if (!results.ok()) return results.status();
  return Report(flags, *results, invocation);
}

}  // namespace

Command AddEvalCommand(CLI::App& root) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* app = root.add_subcommand("eval", "Measures the quality of answers");
  app->require_subcommand(1);
  CLI::App* passkey = app->add_subcommand(
      "passkey", "Finds a number hidden in filler text, per strategy and length");
  passkey
      ->add_option("--strategies", flags->strategies,
                   "Methods to compare: STRATEGY or STRATEGY+POSITIONS, each as `ask` takes it")
      ->capture_default_str();
  CLI::Option* lengths =
      passkey->add_option("--lengths", flags->multiples, "Lengths, in trained lengths of the model")
          ->delimiter(',')
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  passkey->add_option("--tokens", flags->tokens, "Lengths in tokens")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->excludes(lengths);
  passkey->add_option("--trials", flags->num_trials, "Trials per strategy and length")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  passkey->add_option("--concurrency", flags->concurrency, "Questions at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  passkey->add_option("--filler", flags->filler, "grass, or a text file to cut sentences from")
      ->capture_default_str();
  passkey->add_option("--seed", flags->seed, "Equal seeds give equal prompts")
      ->capture_default_str();
  passkey->add_option("--output", flags->output, "CSV file with one line per trial");
  return {app, [flags](Invocation& invocation) { return EvalPasskey(*flags, invocation); }};
}

}  // namespace folio::cli
