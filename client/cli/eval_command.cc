#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/eval_flags.h"
#include "client/eval/passkey_task.h"

namespace folio::cli {
namespace {

void AddTrialFlags(CLI::App& app, EvalFlags& flags, const std::string& trials) {
  CLI::Option* lengths =
      app.add_option("--lengths", flags.multiples, "Lengths, in trained lengths of the model")
          ->delimiter(',')
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  app.add_option("--tokens", flags.tokens, "Lengths in tokens")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->excludes(lengths);
  app.add_option("--trials", flags.num_trials, trials)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--concurrency", flags.concurrency, "Questions at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Equal seeds give equal prompts")->capture_default_str();
  app.add_flag("--resume", flags.resume, "Take over the answers that --output already holds");
}

void AddPasskeyFlags(CLI::App& app, EvalFlags& flags) {
  app.add_option("--filler", flags.filler, "grass, or a text file to cut sentences from")
      ->capture_default_str();
  std::vector<std::string> names;
  names.reserve(eval::AllPasskeyRules().size());
  for (const eval::PasskeyRules& rules : eval::AllPasskeyRules()) names.push_back(rules.name);
  app.add_option("--generator", flags.generator, "Whose keys and answers: the published generators")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
}

void AddCommonFlags(CLI::App& app, EvalFlags& flags) {
  app.add_option("--strategies", flags.strategies,
                 absl::StrCat("Methods to compare: STRATEGY or STRATEGY+POSITIONS, each as `ask` "
                              "takes it [",
                              absl::StrJoin(flags.strategies, " "), "]"));
  app.add_option("--output", flags.output, "CSV file");
  app.add_option("--picture", flags.picture, "SVG file");
}

}  // namespace

Command AddEvalCommand(CLI::App& root) {
  const auto flags = std::make_shared<EvalFlags>();
  flags->strategies = {"full", "lm_infinite", "long_heads"};
  CLI::App* app = root.add_subcommand("eval", "Measures the quality of answers");
  app->require_subcommand(1);
  CLI::App* passkey = app->add_subcommand(
      "passkey", "Finds a number hidden in filler text, per strategy and length");
  AddCommonFlags(*passkey, *flags);
  AddTrialFlags(*passkey, *flags, "Trials per strategy and length");
  AddPasskeyFlags(*passkey, *flags);
  CLI::App* needle =
      app->add_subcommand("needle", "The same on a grid of depths and lengths, as a heat map");
  AddCommonFlags(*needle, *flags);
  AddTrialFlags(*needle, *flags, "Trials per strategy, length and depth");
  AddPasskeyFlags(*needle, *flags);
  needle->add_option("--depths", flags->num_depths, "Depths of the needle")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  CLI::App* pairs = app->add_subcommand(
      "kv-retrieval", "Asks for one value of a JSON object of random identifiers");
  AddCommonFlags(*pairs, *flags);
  AddTrialFlags(*pairs, *flags, "Trials per strategy and length");
  CLI::App* perplexity =
      app->add_subcommand("perplexity", "Perplexity of a text by position and by length");
  AddCommonFlags(*perplexity, *flags);
  perplexity->add_option("--text", flags->text, "UTF-8 text file")->required();
  perplexity->add_option("--bucket-tokens", flags->bucket_tokens,
                         "Tokens in a bucket of positions (default: buckets that double)");
  CLI::App* coverage = app->add_subcommand(
      "coverage",
      "Which parts of a text the heads of each layer choose, and whether the right one");
  const auto choosers = std::make_shared<EvalFlags>();
  choosers->strategies = {"long_heads"};
  AddCommonFlags(*coverage, *choosers);
  AddTrialFlags(*coverage, *choosers, "Trials per strategy and length");
  AddPasskeyFlags(*coverage, *choosers);
  return {app, [flags, choosers, needle, pairs, perplexity, coverage](Invocation& invocation) {
            if (coverage->parsed()) return EvalCoverage(*choosers, invocation);
            if (perplexity->parsed()) return EvalPerplexity(*flags, invocation);
            EvalTaskKind task = needle->parsed() ? EvalTaskKind::kNeedle : EvalTaskKind::kPasskey;
            if (pairs->parsed()) task = EvalTaskKind::kKvRetrieval;
            return EvalTrials(*flags, task, invocation);
          }};
}

}  // namespace folio::cli
