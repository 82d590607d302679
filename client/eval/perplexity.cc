#include "client/eval/perplexity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace folio::eval {
namespace {

constexpr uint64_t kPartBytes = uint64_t{64} << 10;

}  // namespace

double PerplexityOf(const v1::ScoreBucket& bucket) {
  return std::exp(-bucket.log_likelihood() / static_cast<double>(bucket.num_tokens()));
}

absl::StatusOr<PerplexityCurve> MeasurePerplexity(client::Client& client, const Method& method,
                                                  const client::DocumentSource& text,
                                                  uint32_t bucket_tokens,
                                                  const client::CancelToken& cancel) {
  PerplexityCurve curve{.name = method.name, .buckets = {}};
  v1::ScoreHeader header;
  *header.mutable_strategy() = method.strategy;
  *header.mutable_position() = method.position;
  header.set_bucket_tokens(bucket_tokens);
  uint64_t offset = 0;
  const auto next_part = [&]() -> absl::StatusOr<std::optional<v1::ScoreRequest>> {
    if (offset >= text.size_bytes()) return std::optional<v1::ScoreRequest>();
    const absl::StatusOr<std::string> data = text.Read(offset, kPartBytes);
    if (!data.ok()) return data.status();
    offset += data->size();
    v1::ScoreRequest request;
    request.set_text(*data);
    return std::optional<v1::ScoreRequest>(std::move(request));
  };
  const absl::Status status =
      client.Score(header, next_part, {.cancel = cancel}, [&curve](const v1::ScoreEvent& event) {
        if (event.has_bucket()) curve.buckets.push_back(event.bucket());
      });
  if (!status.ok()) return status;
  return curve;
}

std::string FormatPerplexity(const std::vector<PerplexityCurve>& curves) {
  if (curves.empty()) return "";
  size_t name_columns = sizeof("up to position") - 1;
  for (const PerplexityCurve& curve : curves) {
    name_columns = std::max(name_columns, curve.name.size());
  }
  std::string tables;
  for (const bool cumulative : {false, true}) {
    absl::StrAppendFormat(&tables, "%-*s", static_cast<int>(name_columns),
                          cumulative ? "up to position" : "positions to");
    for (const v1::ScoreBucket& bucket : curves.front().buckets) {
      absl::StrAppendFormat(&tables, " %8d", bucket.end());
    }
    tables += "\n";
    for (const PerplexityCurve& curve : curves) {
      absl::StrAppendFormat(&tables, "%-*s", static_cast<int>(name_columns), curve.name);
      v1::ScoreBucket sum;
      for (const v1::ScoreBucket& bucket : curve.buckets) {
        sum.set_num_tokens(sum.num_tokens() + bucket.num_tokens());
        sum.set_log_likelihood(sum.log_likelihood() + bucket.log_likelihood());
        absl::StrAppendFormat(&tables, " %8.2f", PerplexityOf(cumulative ? sum : bucket));
      }
      tables += "\n";
    }
  }
  return tables;
}

std::string PerplexityCsv(const std::vector<PerplexityCurve>& curves) {
  std::string csv = "method,begin,end,num_tokens,log_likelihood,perplexity\n";
  for (const PerplexityCurve& curve : curves) {
    for (const v1::ScoreBucket& b : curve.buckets) {
      absl::StrAppendFormat(&csv, "\"%s\",%d,%d,%d,%.6f,%.6f\n", curve.name, b.begin(), b.end(),
                            b.num_tokens(), b.log_likelihood(), PerplexityOf(b));
    }
  }
  return csv;
}

}  // namespace folio::eval
