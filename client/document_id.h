// Ids of documents, and how a proxy learns which document a call is about.
#pragma once

#include <string>

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace folio::client {

// "doc-" and 32 random hexadecimal digits. Thread-safe.
std::string RandomDocumentId();

// Whether a document can have this id: 1..64 characters of [A-Za-z0-9_-]. Thread-safe.
bool CanBeDocumentId(const std::string& text);

// Adds the metadata x-document-id, by which a proxy sends all calls about one document to the
// server that has it (deploy/README.md). Not for an id that no document can have: the server
// answers it anyway, and gRPC takes no other characters than printable ones. Thread-safe.
void NameDocument(const std::string& document_id, grpc::ClientContext* context);

}  // namespace folio::client
