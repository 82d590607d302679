// Perplexity of a text by position.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/eval/methods.h"

namespace folio::eval {

// What one method says of one text.
struct PerplexityCurve {
  std::string name;
  std::vector<v1::ScoreBucket> buckets;  // by position, ascending
};

// Scores the whole text. `bucket_tokens` 0: buckets that double. Errors: of the server.
absl::StatusOr<PerplexityCurve> MeasurePerplexity(client::Client& client, const Method& method,
                                                  const client::DocumentSource& text,
                                                  uint32_t bucket_tokens,
                                                  const client::CancelToken& cancel);

double PerplexityOf(const v1::ScoreBucket& bucket);

// Two tables: by position, and of all tokens up to a length.
std::string FormatPerplexity(const std::vector<PerplexityCurve>& curves);
// method,begin,end,num_tokens,log_likelihood,perplexity
std::string PerplexityCsv(const std::vector<PerplexityCurve>& curves);

}  // namespace folio::eval
