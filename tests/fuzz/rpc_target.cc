#include "tests/fuzz/rpc_target.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "tests/server/raw_call.h"

namespace folio::testing {
namespace {

using google::protobuf::MethodDescriptor;

constexpr char kReady[] = "book";
constexpr char kUnfinished[] = "draft";

// The requests of a stream, each behind its length in two bytes.
void SendPieces(std::string_view pieces, RawCall* call) {
  while (pieces.size() >= 2) {
    const size_t length = static_cast<uint8_t>(pieces[0]) | static_cast<uint8_t>(pieces[1]) << 8;
    pieces.remove_prefix(2);
    call->Send(pieces.substr(0, length));
    pieces.remove_prefix(std::min(length, pieces.size()));
  }
}

}  // namespace

RpcTarget::RpcTarget() {
  server_.engine().AnswerAtOnce();
  server_.engine().fake_tokenizer().Release();
  RestoreDocuments();
}

grpc::Status RpcTarget::Call(std::string_view input) {
  static const std::vector<const MethodDescriptor*> methods = AllMethods();
  if (input.empty()) return grpc::Status::OK;
  const MethodDescriptor& method = *methods[static_cast<uint8_t>(input[0]) % methods.size()];
  RawCall call(channel_, PathOf(method));
  call.context().set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  if (method.client_streaming()) {
    SendPieces(input.substr(1), &call);
  } else {
    call.Send(input.substr(1));
  }
  // An upload may be watched for as long as somebody might go on with it.
  if (method.name() == "WatchDocument" && call.Read()) call.context().TryCancel();
  const grpc::Status status = call.Finish();
  RestoreDocuments();
  return status;
}

void RpcTarget::RestoreDocuments() {
  FakeEngine& engine = server_.engine();
  for (const DocumentInfo& document : engine.ListDocuments("", 1000)) {
    const std::string& id = document.handle.id;
    const bool kept = (id == kReady && document.state == DocumentState::kReady) ||
                      (id == kUnfinished && document.state == DocumentState::kUploading);
    if (!kept) engine.DeleteDocument(document.handle).IgnoreError();
  }
  if (!engine.GetDocument(kReady).has_value()) UploadWhole(&server_, kReady, "The text of a book.");
  if (engine.GetDocument(kUnfinished).has_value()) return;
  Upload upload(server_.channel());
  upload.Header(kUnfinished);
  upload.Chunk(0, "some text ");
  upload.HalfClose();
  upload.Finish();
}

}  // namespace folio::testing
