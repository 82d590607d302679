// `folio eval passkey`, `needle` and `kv-retrieval`: questions with known answers.
#include <algorithm>
#include <iterator>
#include <ostream>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/eval_flags.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_line.h"
#include "client/eval/chart.h"
#include "client/eval/report.h"

namespace folio::cli {
namespace {

// The answers of an interrupted run that the CSV file holds.
absl::StatusOr<std::vector<eval::TrialResult>> KnownResults(const EvalFlags& flags) {
  if (!flags.resume) return std::vector<eval::TrialResult>();
  auto results = eval::ParseCsv(ReadIfThere(flags.output));
  if (results.ok()) return results;
  return AsFileError(
      absl::InvalidArgumentError(absl::StrCat(flags.output, ": ", results.status().message())));
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
    rows.push_back(absl::StrFormat("%.0f %%", eval::DepthPercent(grids.front(), i)));
  }
  return eval::HeatMaps({"needle found, by depth and length in tokens", "tokens", "depth"}, columns,
                        rows, maps);
}

// The answers of an earlier run that this one did not ask for: its file keeps them.
std::vector<eval::TrialResult> NotAsked(const std::vector<eval::TrialResult>& known,
                                        const std::vector<eval::TrialResult>& results) {
  using Key = std::tuple<std::string, uint64_t, int>;
  const auto key = [](const eval::TrialResult& result) {
    return Key(result.strategy, result.target_tokens, result.trial_idx);
  };
  std::set<Key> asked;
  for (const eval::TrialResult& result : results) asked.insert(key(result));
  std::vector<eval::TrialResult> others;
  std::copy_if(known.begin(), known.end(), std::back_inserter(others),
               [&](const eval::TrialResult& result) { return !asked.contains(key(result)); });
  return others;
}

// What the answers say, on stdout and --picture.
absl::Status Report(const EvalFlags& flags, const std::vector<eval::TrialResult>& results,
                    EvalTaskKind task, Invocation& invocation) {
  const bool by_depth = task == EvalTaskKind::kNeedle;
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
  const std::string picture = by_depth ? GridPicture(grids) : AccuracyChart(TaskName(task), rows);
  if (absl::Status s = WriteFile(flags.picture, picture); !s.ok()) return s;
  return FirstError(results);
}

}  // namespace

// Needle: the pass key at depths spread over a grid.
absl::Status EvalTrials(const EvalFlags& flags, EvalTaskKind kind, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo({.cancel = invocation.cancel});
  if (!info.ok()) return info.status();
  auto plan = MakePlan(flags, *info, invocation.cancel);
  if (!plan.ok()) return plan.status();
  auto known = KnownResults(flags);
  if (!known.ok()) return known.status();
  plan->known = *std::move(known);
  auto records = RecordFile::Create(flags.output, eval::FormatCsv(plan->known));
  if (!records.ok()) return records.status();
  if (kind == EvalTaskKind::kNeedle) plan->num_trials = flags.num_depths * flags.num_trials;
  const auto task = MakeTask(kind, flags, *plan, **client);
  if (!task.ok()) return task.status();

  ProgressLine line(invocation.console);
  Progress progress{.label = TaskName(kind), .unit = ProgressUnit::kTrials};
  progress.total =
      plan->lengths_tokens.size() * plan->methods.size() * static_cast<size_t>(plan->num_trials);
  const auto results = eval::RunEval(**client, **task, *plan, [&](const eval::TrialResult& result) {
    ++progress.done;
    line.Update(progress);
    if (!result.known) records->Add(eval::CsvRecord(result));
    if (!invocation.json) return;
    const nlohmann::ordered_json trial = {{"trial", eval::TrialToJson(result)}};
    invocation.console.out << trial.dump(-1, ' ', false,
                                         nlohmann::ordered_json::error_handler_t::replace)
                           << std::endl;
  });
  line.Clear();
  if (!results.ok()) return results.status();
  std::vector<eval::TrialResult> kept = *results;
  for (eval::TrialResult& other : NotAsked(plan->known, *results)) kept.push_back(std::move(other));
  if (absl::Status s = WriteFile(flags.output, eval::FormatCsv(kept)); !s.ok()) return s;
  return Report(flags, *results, kind, invocation);
}

}  // namespace folio::cli
