#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>

#include "engine/runtime/engine.h"
#include "engine/types/request.h"
#include "folio/v1/inference.pb.h"
#include "server/options.h"

namespace folio::server {

// What a Generate call asks for, ready to be submitted.
struct GenerateQuestion {
  GenerateSpec spec;  // attention resolved
  std::optional<DocumentInfo> document;
  // How its text became tokens; of token ids RAW.
  v1::PromptFormat format = v1::PROMPT_FORMAT_RAW;

  // Of document and question.
  int64_t prompt_tokens() const {
    const auto tokens = static_cast<int64_t>(spec.tokens.size());
    return tokens + (document.has_value() ? document->known_tokens : 0);
  }
};

// Of a request until its tokens are known: the message, and what makes them of it.
int64_t MemoryToRead(const v1::GenerateRequest& request, const Tokenizer& tokenizer);

// Reads and tokenises a request, and finds its document among those of `owner` (Caller): may take
// seconds. Errors: INVALID_ARGUMENT
// with all fields that are wrong; NOT_FOUND and FAILED_PRECONDITION of the document; any once
// `interrupt` has ended it.
grpc::Status ReadGenerateRequest(const v1::GenerateRequest& request, const Engine& engine,
                                 const ServerOptions& options, const std::string& owner,
                                 const Interrupt& interrupt, GenerateQuestion* question);

}  // namespace folio::server
