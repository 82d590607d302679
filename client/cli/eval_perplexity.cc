#include <nlohmann/json.hpp>
#include <ostream>

#include "client/cli/eval_flags.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_line.h"
#include "client/document_source.h"
#include "client/eval/chart.h"
#include "client/eval/perplexity.h"

namespace folio::cli {

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

}  // namespace folio::cli
