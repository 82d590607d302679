// Greedy answers must not depend on what else the server does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/client.h"
#include "loadtest/call_record.h"
#include "loadtest/options.h"
#include "loadtest/prompt_builder.h"

namespace folio::loadtest {

struct GreedyVerification {
  uint64_t num_checked = 0;
  // One line for each answer that differs, or that could not be repeated.
  std::vector<std::string> mismatches;
};

// Repeats every completed greedy call of `records`, one after the other, and compares the tokens.
// Blocks.
GreedyVerification VerifyGreedy(client::Client& client, const PromptBuilder& prompts,
                                const Options& options, const std::vector<CallRecord>& records);

}  // namespace folio::loadtest
