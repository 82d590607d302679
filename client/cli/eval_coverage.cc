// `folio eval coverage`: what the heads choose while they look for a pass key.
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/eval_flags.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_line.h"
#include "client/eval/coverage.h"

namespace folio::cli {
namespace {

absl::StatusOr<std::vector<eval::LayerCoverage>> KnownCoverage(const EvalFlags& flags) {
  if (!flags.resume) return std::vector<eval::LayerCoverage>();
  auto known = eval::ParseCoverageCsv(ReadIfThere(flags.output));
  if (known.ok()) return known;
  return AsFileError(
      absl::InvalidArgumentError(absl::StrCat(flags.output, ": ", known.status().message())));
}

// Trials that need not be asked again.
std::vector<eval::TrialResult> TrialsOf(const std::vector<eval::LayerCoverage>& known) {
  std::vector<eval::TrialResult> trials;
  for (const eval::LayerCoverage& coverage : known) {
    if (coverage.layer != eval::LayerCoverage::kAllLayers) continue;
    eval::TrialResult trial;
    trial.strategy = coverage.strategy;
    trial.target_tokens = coverage.target_tokens;
    trial.trial_idx = coverage.trial_idx;
    trials.push_back(std::move(trial));
  }
  return trials;
}

absl::Status Report(const EvalFlags& flags, const std::vector<eval::LayerCoverage>& all,
                    Invocation& invocation) {
  const std::vector<eval::CoverageRow> rows = eval::SummarizeCoverage(all);
  std::ostream& out = invocation.console.out;
  if (invocation.json) {
    for (const eval::CoverageRow& row : rows) {
      const nlohmann::ordered_json line = {{"coverage", eval::ToJson(row)}};
      out << line.dump() << std::endl;
    }
  } else if (rows.empty()) {
    out << "no choices: the heads saw the whole text\n" << std::flush;
  } else {
    out << eval::FormatCoverage(rows) << std::flush;
  }
  return WriteFile(flags.picture, eval::CoveragePicture(rows));
}

}  // namespace

absl::Status EvalCoverage(const EvalFlags& flags, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo({.cancel = invocation.cancel});
  if (!info.ok()) return info.status();
  auto plan = MakePlan(flags, *info, invocation.cancel);
  if (!plan.ok()) return plan.status();
  plan->layer_evidence = true;
  auto all = KnownCoverage(flags);
  if (!all.ok()) return all.status();
  plan->known = TrialsOf(*all);
  std::string begin = eval::CoverageCsvHeader();
  for (const eval::LayerCoverage& coverage : *all) begin += eval::CoverageCsvRecord(coverage);
  auto records = RecordFile::Create(flags.output, begin);
  if (!records.ok()) return records.status();
  const auto task = MakeTask(EvalTaskKind::kPasskey, flags, *plan, **client);
  if (!task.ok()) return task.status();

  ProgressLine line(invocation.console);
  Progress progress{.label = "coverage", .unit = ProgressUnit::kTrials};
  progress.total =
      plan->lengths_tokens.size() * plan->methods.size() * static_cast<size_t>(plan->num_trials);
  const auto results = eval::RunEval(**client, **task, *plan, [&](const eval::TrialResult& result) {
    ++progress.done;
    line.Update(progress);
    if (result.known) return;
    for (eval::LayerCoverage& coverage : eval::CoverageOf(result)) {
      records->Add(eval::CoverageCsvRecord(coverage));
      all->push_back(std::move(coverage));
    }
  });
  line.Clear();
  if (!results.ok()) return results.status();
  if (absl::Status s = Report(flags, *all, invocation); !s.ok()) return s;
  return FirstError(*results);
}

}  // namespace folio::cli
