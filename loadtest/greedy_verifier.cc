#include "loadtest/greedy_verifier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/status.h"

namespace folio::loadtest {

GreedyVerification VerifyGreedy(client::Client& client, const PromptBuilder& prompts,
                                const Options& options, const std::vector<CallRecord>& records) {
  GreedyVerification verification;
  for (const CallRecord& record : records) {
    if (record.outcome() != Outcome::kCompleted || !record.spec.greedy) continue;
    ++verification.num_checked;
    v1::GenerateRequest request = prompts.BuildRequest(record.spec, options);
    const std::string id = request.request_id();
    request.set_request_id(absl::StrCat("verify-", id));
    std::vector<uint32_t> alone;
    const absl::Status status =
        client.Generate(request, {.timeout = absl::Seconds(options.timeout_seconds)},
                        [&alone](const v1::GenerateEvent& event) {
                          const auto& ids = event.delta().token_ids();
                          alone.insert(alone.end(), ids.begin(), ids.end());
                        });
    if (!status.ok()) {
      verification.mismatches.push_back(
          absl::StrCat(id, " (", record.spec.strategy, "): ", client::FormatError(status)));
    } else if (alone != record.token_ids) {
      const auto [under_load, repeated] = std::mismatch(
          record.token_ids.begin(), record.token_ids.end(), alone.begin(), alone.end());
      verification.mismatches.push_back(absl::StrCat(
          id, " (", record.spec.strategy, ", ", record.spec.prompt_tokens,
          " prompt tokens): ", record.token_ids.size(), " tokens under load, ", alone.size(),
          " alone; they differ from token ", under_load - record.token_ids.begin(), " on"));
    }
  }
  return verification;
}

}  // namespace folio::loadtest
