// How a document is uploaded.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/backoff.h"
#include "client/cancel_token.h"
#include "folio/v1/documents.pb.h"

namespace folio::client {

struct UploadOptions {
  // Random when empty: the client's choice, because proxies route by it from the first call on.
  std::string document_id;
  // What resumes an upload that another process began; chosen by the server when empty.
  std::string upload_token;
  std::string display_name;
  // How the document is prefilled; the server's default when unset.
  std::optional<v1::AttentionStrategy> strategy;
  std::optional<v1::PositionScheme> position;
  std::string adapter;  // empty: none
  // Of the document and its questions; the server's defaults when unset.
  v1::PromptFormat format = v1::PROMPT_FORMAT_UNSPECIFIED;
  std::optional<std::string> system;
  // What the server keeps with the document (DocumentHeader).
  absl::Duration ttl = absl::ZeroDuration();  // zero: it stays
  bool pinned = false;
  std::map<std::string, std::string> labels;
  // Return as soon as the server has the whole text; it goes on with the prefill alone.
  bool detach = false;
  // A finished document with this id is the wanted one: wait for it and return it instead of
  // failing with ALREADY_EXISTS. Meant for ids that are made from the content.
  bool reuse_existing = false;
  // Bytes in one part, at most 1 MiB.
  size_t part_bytes = size_t{256} << 10;
  RetryPolicy retry;
  CancelToken cancel;
};

// Sees every event of the server, on the thread that uploads. After a resume `created` comes again.
using UploadEventCallback = absl::FunctionRef<void(const v1::UploadDocumentEvent&)>;

}  // namespace folio::client
