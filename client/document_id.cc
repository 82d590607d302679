#include "client/document_id.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace folio::client {

bool CanBeDocumentId(const std::string& text) {
  constexpr size_t kMaxLength = 64;
  return !text.empty() && text.size() <= kMaxLength &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

std::string RandomDocumentId() {
  std::random_device random;
  std::string id = "doc-";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

void NameDocument(const std::string& document_id, grpc::ClientContext* context) {
  if (CanBeDocumentId(document_id)) context->AddMetadata("x-document-id", document_id);
}

}  // namespace folio::client
