#pragma once

#include <google/protobuf/map.h>

#include <string>

#include "engine/types/document_attributes.h"
#include "folio/v1/documents.pb.h"
#include "server/status_mapping.h"

namespace folio::server {

// What the owner of a document says of it, as requests have it.
using Labels = google::protobuf::Map<std::string, std::string>;

inline constexpr size_t kMaxLabels = 64;

// What is wrong with a field is added to `bad`.
void CheckTtl(const google::protobuf::Duration& ttl, const std::string& field,
              FieldViolations* bad);
void CheckLabels(const Labels& labels, const std::string& field, FieldViolations* bad);

// REQUIRES: nothing is wrong with it.
DocumentAttributes AttributesOf(const v1::DocumentHeader& header);
// False, and nothing is changed: there would be more than kMaxLabels. REQUIRES: as above.
bool Update(const v1::UpdateDocumentRequest& request, DocumentAttributes* attributes);

bool HasLabels(const DocumentAttributes& attributes, const Labels& wanted);

void ToProto(const DocumentAttributes& attributes, v1::Document* document);
// Of a finished document.
void SetExpireTime(const DocumentAttributes& attributes, v1::Document* document);

}  // namespace folio::server
