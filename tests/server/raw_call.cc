#include "tests/server/raw_call.h"

#include "absl/strings/str_cat.h"

namespace folio::testing {

using google::protobuf::DescriptorPool;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
    : channel_(channel),
      name_(method),
      stream_(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(),
          grpc::internal::RpcMethod(name_.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING),
          &context_)) {}

void RawCall::Send(std::string_view bytes) {
  grpc::Slice slice(bytes.data(), bytes.size());
  stream_->Write(grpc::ByteBuffer(&slice, 1));
}

bool RawCall::Read() {
  grpc::ByteBuffer answer;
  return stream_->Read(&answer);
}

grpc::Status RawCall::Finish() {
  stream_->WritesDone();
  while (Read()) {
  }
  return stream_->Finish();
}

std::vector<const MethodDescriptor*> AllMethods() {
  std::vector<const MethodDescriptor*> methods;
  for (const char* name :
       {"folio.v1.Inference", "folio.v1.Documents", "folio.v1.Text", "folio.v1.Control"}) {
    const ServiceDescriptor* service = DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) methods.push_back(service->method(i));
  }
  return methods;
}

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

}  // namespace folio::testing
