#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/status_mapping.h"

namespace folio::server {

// A message of a client, which may be malformed. Where gRPC 1.51 cannot read the request of a
// method, it ends the call with UNIMPLEMENTED before the service hears of it, and in a stream takes
// it for the end of the stream. As the request type of a method this leaves the answer to the
// service.
template <typename Message>
struct Incoming {
  Message message;
  // What came is no Message, or has a string that is not UTF-8; `message` is empty then.
  bool malformed = false;
};

// INVALID_ARGUMENT for a malformed message.
template <typename Message>
grpc::Status CheckWellFormed(const Incoming<Message>& incoming) {
  if (!incoming.malformed) return grpc::Status::OK;
  return ToGrpcStatus(
      absl::InvalidArgumentError(absl::StrCat(
          "the request is no ", Message::descriptor()->full_name(),
          ": its bytes are no protocol buffer of this type, or a string of it is not UTF-8")),
      {"MALFORMED_REQUEST", {}, {}});
}

}  // namespace folio::server

namespace grpc {

// How gRPC reads it.
template <typename Message>
class SerializationTraits<folio::server::Incoming<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, folio::server::Incoming<Message>* incoming) {
    // The call has ended before a message came: gRPC's to say.
    if (!bytes->Valid()) return Status(StatusCode::INTERNAL, "no message");
    incoming->malformed =
        !SerializationTraits<Message>::Deserialize(bytes, &incoming->message).ok();
    if (incoming->malformed) incoming->message.Clear();
    return Status::OK;
  }
};

}  // namespace grpc
