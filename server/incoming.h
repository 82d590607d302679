#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/prompt_pool.h"
#include "server/status_mapping.h"

namespace folio::server {

// A message of a client, as it came. Where gRPC 1.51 cannot read the request of a method, it ends
// the call with UNIMPLEMENTED before the service hears of it, and in a stream takes it for the end
// of the stream. As the request type of a method this leaves the answer to the service; and to read
// a message of megabytes, which takes tens of milliseconds, to threads that others do not wait for.
template <typename Message>
class Incoming {
 public:
  // On the wire.
  size_t bytes() const { return bytes_; }
  // Whether Read has nothing more to do: messages of short work are read by gRPC's own threads.
  bool is_read() const { return !unread_.Valid(); }
  // Makes message() of the bytes, once. INVALID_ARGUMENT if they are none: it is empty then. const,
  // because gRPC hands requests out so; not thread-safe.
  grpc::Status Read() const {
    if (!is_read()) Parse();
    if (!malformed_) return grpc::Status::OK;
    return ToGrpcStatus(
        absl::InvalidArgumentError(absl::StrCat(
            "the request is no ", Message::descriptor()->full_name(),
            ": its bytes are no protocol buffer of this type, or a string of it is not UTF-8")),
        {"MALFORMED_REQUEST", {}, {}});
  }
  // Empty before it is read.
  const Message& message() const { return message_; }

 private:
  friend class grpc::SerializationTraits<Incoming, void>;

  void Parse() const {
    malformed_ = !grpc::SerializationTraits<Message>::Deserialize(&unread_, &message_).ok();
    if (malformed_) message_.Clear();
    unread_.Clear();
  }

  size_t bytes_ = 0;
  mutable grpc::ByteBuffer unread_;
  mutable Message message_;
  mutable bool malformed_ = false;
};

}  // namespace folio::server

namespace grpc {

// How gRPC reads it.
template <typename Message>
class SerializationTraits<folio::server::Incoming<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, folio::server::Incoming<Message>* incoming) {
    // The call has ended before a message came: gRPC's to say.
    if (!bytes->Valid()) return Status(StatusCode::INTERNAL, "no message");
    incoming->bytes_ = bytes->Length();
    incoming->unread_.Swap(bytes);
    if (incoming->bytes_ <= folio::server::PromptPool::kLongBytes) incoming->Parse();
    return Status::OK;
  }
};

}  // namespace grpc
