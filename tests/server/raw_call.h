#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace folio::testing {

// A call that sends bytes. On the wire all kinds of methods begin alike.
class RawCall {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method);

  grpc::ClientContext& context() { return context_; }
  void Send(std::string_view bytes);
  void Send(const google::protobuf::Message& message) { Send(message.SerializeAsString()); }
  // False once the call has ended.
  bool Read();
  grpc::Status Finish();

 private:
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string name_;
  grpc::ClientContext context_;
  const std::unique_ptr<Stream> stream_;
};

// Of all services of folio.v1, in their order.
std::vector<const google::protobuf::MethodDescriptor*> AllMethods();
// What RawCall calls it.
std::string PathOf(const google::protobuf::MethodDescriptor& method);

}  // namespace folio::testing
