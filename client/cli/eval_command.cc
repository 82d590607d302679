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
#include "client/eval/chart.h"
#include "client/eval/eval_runner.h"
#include "client/eval/filler.h"
#include "client/eval/kv_retrieval_task.h"
#include "client/eval/methods.h"
#include "client/eval/passkey_task.h"
#include "client/eval/perplexity.h"
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
  std::string generator = "landmark";
  uint64_t seed = 1;
  std::string output;
  bool resume = false;
  std::string picture;
  int num_depths = 10;
  std::string text;
  uint32_t bucket_tokens = 0;
};

absl::Status WriteFile(const std::string& path, const std::string& content) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << content;
  file.close();
  return file ? absl::OkStatus() : AsFileError(absl::UnknownError("cannot write " + path));
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

// The answers of an interrupted run that the CSV file holds.
absl::StatusOr<std::vector<eval::TrialResult>> KnownResults(const EvalFlags& flags) {
  std::ifstream file(flags.output);
  if (!flags.resume || !file) return std::vector<eval::TrialResult>();
  auto results = eval::ParseCsv({std::istreambuf_iterator<char>(file), {}});
  if (results.ok()) return results;
  return AsFileError(
      absl::InvalidArgumentError(absl::StrCat(flags.output, ": ", results.status().message())));
}

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
  auto methods = MethodsOf(flags);
  if (!methods.ok()) return methods.status();
  plan.methods = *std::move(methods);
  auto known = KnownResults(flags);
  if (!known.ok()) return known.status();
  plan.known = *std::move(known);
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

enum class Task { kPasskey, kNeedle, kKvRetrieval };

const char* TaskName(Task task) {
  if (task == Task::kKvRetrieval) return "kv-retrieval";
  return task == Task::kNeedle ? "needle" : "passkey";
}

absl::StatusOr<std::unique_ptr<eval::EvalTask>> MakeTask(Task kind, const EvalFlags& flags,
                                                         uint64_t max_length_tokens,
                                                         client::Client& client,
                                                         const Invocation& invocation) {
  const eval::TokenCounter counter = eval::ServerTokenCounter(client, invocation.cancel);
  if (kind == Task::kKvRetrieval) {
    return std::make_unique<eval::KvRetrievalTask>(counter, flags.seed);
  }
  const auto sentences = FillerSentences(flags.filler);
  if (!sentences.ok()) return sentences.status();
  const bool grass = flags.filler == "grass";
  auto filler = eval::Filler::Create(
      *sentences, grass ? eval::FillerStart::kBeginning : eval::FillerStart::kAnywhere, counter,
      2 * max_length_tokens);
  if (!filler.ok()) return filler.status();
  const auto& all = eval::AllPasskeyRules();
  const auto rules = std::find_if(all.begin(), all.end(),
                                  [&](const auto& rule) { return rule.name == flags.generator; });
  return std::make_unique<eval::PasskeyTask>(*std::move(filler), counter, flags.seed, *rules);
}

std::string AccuracyChart(const std::string& title, const std::vector<eval::Row>& rows) {
  std::vector<eval::Series> series;
  for (const eval::Row& row : rows) {
    eval::Series line{.name = row.name, .points = {}};
    for (const eval::Cell& cell : row.cells) {
      if (cell.num_answers == 0) continue;
      line.points.emplace_back(cell.target_tokens, 100.0 * cell.num_correct / cell.num_answers);
    }
    series.push_back(std::move(line));
  }
  return eval::LineChart({title, "tokens", "%"}, series, 100);
}

std::string GridPicture(const std::vector<eval::DepthGrid>& grids) {
  std::vector<std::string> columns;
  std::vector<std::string> rows;
  std::vector<eval::HeatMap> maps;
  maps.reserve(grids.size());
  for (const eval::DepthGrid& grid : grids) maps.push_back({grid.name, grid.accuracy});
  if (grids.empty()) return "";
  for (const uint64_t length : grids.front().lengths) columns.push_back(absl::StrCat(length));
  for (size_t i = 0; i < grids.front().accuracy.size(); ++i) {
    rows.push_back(absl::StrCat(100 * i / grids.front().accuracy.size(), " %"));
  }
  return eval::HeatMaps({"needle found, by depth and length in tokens", "tokens", "depth"}, columns,
                        rows, maps);
}

// The first trial without an answer makes the command fail, after everything was shown.
absl::Status FirstError(const std::vector<eval::TrialResult>& results) {
  for (const eval::TrialResult& result : results) {
    if (result.status.ok()) continue;
    return absl::Status(result.status.code(),
                        absl::StrCat("some trials have no answer (marked !), the first: ",
                                     client::FormatError(result.status)));
  }
  return absl::OkStatus();
}

// What the answers say, on stdout, --output and --picture.
absl::Status Report(const EvalFlags& flags, const std::vector<eval::TrialResult>& results,
                    Task task, Invocation& invocation) {
  const bool by_depth = task == Task::kNeedle;
  const std::vector<eval::Row> rows = eval::SummarizeResults(results);
  const std::vector<eval::DepthGrid> grids =
      by_depth ? eval::GridByDepth(results, flags.num_depths) : std::vector<eval::DepthGrid>();
  std::ostream& out = invocation.console.out;
  if (invocation.json) {
    const nlohmann::ordered_json line = {{"summary",
                                          {{"task", TaskName(task)},
                                           {"filler", flags.filler},
                                           {"generator", flags.generator},
                                           {"seed", flags.seed},
                                           {"trials", flags.num_trials},
                                           {"cells", eval::RowsToJson(rows)}}}};
    out << line.dump() << std::endl;
  } else {
    out << TaskName(task) << ": right answers in percent, by length in tokens\n"
        << eval::FormatTable(rows);
    for (const eval::DepthGrid& grid : grids) out << "\n" << eval::FormatGrid(grid);
    out << std::flush;
  }
  if (absl::Status s = WriteFile(flags.output, eval::FormatCsv(results)); !s.ok()) return s;
  const std::string picture = by_depth ? GridPicture(grids) : AccuracyChart(TaskName(task), rows);
  if (absl::Status s = WriteFile(flags.picture, picture); !s.ok()) return s;
  return FirstError(results);
}

// Needle: the pass key at depths spread over a grid.
absl::Status EvalTrials(const EvalFlags& flags, Task kind, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo({.cancel = invocation.cancel});
  if (!info.ok()) return info.status();
  auto plan = MakePlan(flags, *info, invocation);
  if (!plan.ok()) return plan.status();
  if (kind == Task::kNeedle) plan->num_trials = flags.num_depths * flags.num_trials;
  uint64_t max_length_tokens = 0;
  for (const uint64_t length : plan->lengths_tokens) {
    max_length_tokens = std::max(max_length_tokens, length);
  }
  const auto task = MakeTask(kind, flags, max_length_tokens, **client, invocation);
  if (!task.ok()) return task.status();

  ProgressLine line(invocation.console);
  Progress progress{.label = TaskName(kind), .unit = ProgressUnit::kTrials};
  progress.total =
      plan->lengths_tokens.size() * plan->methods.size() * static_cast<size_t>(plan->num_trials);
  const auto results = eval::RunEval(**client, **task, *plan, [&](const eval::TrialResult& result) {
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
  return Report(flags, *results, kind, invocation);
}

absl::Status EvalPerplexity(const EvalFlags& flags, Invocation& invocation) {
  const auto methods = MethodsOf(flags);
  if (!methods.ok()) return methods.status();
  const auto source = client::FileSource::Open(flags.text);
  if (!source.ok()) return AsFileError(source.status());
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  std::vector<eval::PerplexityCurve> curves;
  std::vector<eval::Series> series;
  ProgressLine line(invocation.console);
  Progress progress{.label = "perplexity", .unit = ProgressUnit::kTrials};
  progress.total = methods->size();
  for (const eval::Method& method : *methods) {
    line.Update(progress);
    auto curve =
        eval::MeasurePerplexity(**client, method, **source, flags.bucket_tokens, invocation.cancel);
    if (!curve.ok()) return curve.status();
    eval::Series drawn{.name = curve->name, .points = {}};
    for (const v1::ScoreBucket& bucket : curve->buckets) {
      drawn.points.emplace_back(bucket.end(), eval::PerplexityOf(bucket));
      if (!invocation.json) continue;
      const nlohmann::ordered_json cell = {{"method", curve->name},
                                           {"begin", bucket.begin()},
                                           {"end", bucket.end()},
                                           {"num_tokens", bucket.num_tokens()},
                                           {"log_likelihood", bucket.log_likelihood()},
                                           {"perplexity", eval::PerplexityOf(bucket)}};
      invocation.console.out << cell.dump() << std::endl;
    }
    series.push_back(std::move(drawn));
    curves.push_back(*std::move(curve));
    ++progress.done;
  }
  line.Clear();
  if (!invocation.json) invocation.console.out << eval::FormatPerplexity(curves) << std::flush;
  if (absl::Status s = WriteFile(flags.output, eval::PerplexityCsv(curves)); !s.ok()) return s;
  double low = 0;
  for (const eval::Series& drawn : series) {
    if (low == 0 || drawn.points.front().second < low) low = drawn.points.front().second;
  }
  // What has broken down is off the scale.
  return WriteFile(flags.picture,
                   eval::LineChart({"perplexity by position", "tokens", ""}, series, 4 * low));
}

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
                 "Methods to compare: STRATEGY or STRATEGY+POSITIONS, each as `ask` takes it")
      ->capture_default_str();
  app.add_option("--output", flags.output, "CSV file");
  app.add_option("--picture", flags.picture, "SVG file");
}

}  // namespace

Command AddEvalCommand(CLI::App& root) {
  const auto flags = std::make_shared<EvalFlags>();
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
  return {app, [flags, needle, pairs, perplexity](Invocation& invocation) {
            if (perplexity->parsed()) return EvalPerplexity(*flags, invocation);
            Task task = needle->parsed() ? Task::kNeedle : Task::kPasskey;
            if (pairs->parsed()) task = Task::kKvRetrieval;
            return EvalTrials(*flags, task, invocation);
          }};
}

}  // namespace folio::cli
