// Prompts of a given length, and requests made of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "folio/v1/inference.pb.h"
#include "loadtest/options.h"
#include "loadtest/workload.h"

namespace folio::loadtest {

// Makes prompts of random common words, different for every seed, so that no two requests share
// more than a few tokens. Const calls are thread-safe.
class PromptBuilder {
 public:
  struct Word {
    std::string text;
    uint32_t num_tokens;
  };

  // Measures the words with the server's tokenizer.  Errors: of Client::Tokenize.
  static absl::StatusOr<PromptBuilder> Create(client::Client& client);
  // REQUIRES: words not empty, each of at least one token.
  explicit PromptBuilder(std::vector<Word> words) : words_(std::move(words)) {}

  // Words that make `num_tokens` tokens, or a few less where no word fits the rest.
  std::string BuildPrompt(uint32_t num_tokens, uint64_t seed) const;

  // The whole request of `spec`, always the same.
  v1::GenerateRequest BuildRequest(const RequestSpec& spec, const Options& options) const;

 private:
  std::vector<Word> words_;
};

}  // namespace folio::loadtest
