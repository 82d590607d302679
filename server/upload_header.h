#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "folio/v1/documents.pb.h"
#include "server/prompt_format.h"
#include "server/service_context.h"

namespace folio::server {

// What a header asks for.
struct UploadSpec {
  AttentionSpec attention;  // resolved
  PromptLead lead;
};

// Checks the header of an upload to documents of `owner` (Caller), and what its size says before
// any text has come. Errors: INVALID_ARGUMENT with all fields that are wrong; NOT_FOUND (adapter);
// CheckDocumentBytes; FAILED_PRECONDITION for more KV cache than there is. REQUIRES: the model is
// loaded.
grpc::Status ReadUploadHeader(const v1::DocumentHeader& header, const ServiceContext& context,
                              const std::string& owner, UploadSpec* spec);

// RESOURCE_EXHAUSTED for more bytes than a document may have.
grpc::Status CheckDocumentBytes(uint64_t num_bytes, const ServerOptions& options);

}  // namespace folio::server
