#include "tests/server/test_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/rpc/status.pb.h"

namespace folio::testing {
namespace {

constexpr char kFreePort[] = "127.0.0.1:0";

}  // namespace

server::ServerOptions WithMetrics(server::ServerOptions options) {
  options.metrics_listen = kFreePort;
  return options;
}

TestServer::TestServer(server::ServerOptions options, Model model, server::EngineFactory factory)
    : clock_(/*goes_by_itself=*/factory != nullptr) {
  options.listen = kFreePort;
  if (options.metrics_listen != kFreePort) options.metrics_listen = "off";
  if (factory == nullptr) {
    factory = [this](const EngineOptions& engine_options) {
      auto engine = std::make_unique<FakeEngine>(engine_options);
      engine_ = engine.get();
      return engine;
    };
  }
  runner_ = std::make_unique<server::Runner>(options, std::move(factory),
                                             [this] { return clock_.now(); });
  const absl::Status started = runner_->Start();
  EXPECT_TRUE(started.ok()) << started;
  channel_ = runner_->InProcessChannel();
  if (model == Model::kLoaded) Load();
}

void TestServer::Load() {
  const absl::Status loaded = runner_->LoadModel();
  ASSERT_TRUE(loaded.ok()) << loaded;
}

std::shared_ptr<grpc::Channel> TestServer::TcpChannel(int port) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port == 0 ? runner_->grpc_port() : port),
      grpc::InsecureChannelCredentials(), arguments);
}

std::string TestServer::Get(const std::string& path) const {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(runner_->metrics_port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return text;
}

double TestServer::Metric(const std::string& series) const {
  const std::string text = Metrics();
  const size_t at = text.find("\n" + series + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no series " << series << " in\n" << text;
    return 0;
  }
  return std::stod(text.substr(at + series.size() + 2));
}

std::string TrailerOf(const grpc::ClientContext& context, const std::string& key) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(key);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

Generate::Generate(const std::shared_ptr<grpc::Channel>& channel,
                   const v1::GenerateRequest& request,
                   std::optional<std::chrono::milliseconds> timeout)
    : stub_(v1::Inference::NewStub(channel)) {
  context_.set_wait_for_ready(true);
  if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
  reader_ = stub_->Generate(&context_, request);
}

v1::GenerateEvent Generate::Next() {
  v1::GenerateEvent event;
  if (reader_->Read(&event)) {
    EXPECT_EQ(event.sequence(), next_sequence_++);
  }
  return event;
}

grpc::Status Generate::Finish() {
  while (Next().event_case() != v1::GenerateEvent::EVENT_NOT_SET) {
  }
  return reader_->Finish();
}

Upload::Upload(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(v1::Documents::NewStub(channel)), stream_(stub_->UploadDocument(&context_)) {}

void Upload::Header(const v1::DocumentHeader& header) {
  v1::UploadDocumentRequest request;
  *request.mutable_header() = header;
  stream_->Write(request);
}

void Upload::Header(const std::string& id) {
  v1::DocumentHeader header;
  header.set_document_id(id);
  header.set_upload_token(kUploadToken);
  Header(header);
}

void Upload::Chunk(uint64_t offset, const std::string& data) {
  v1::UploadDocumentRequest request;
  request.mutable_chunk()->set_offset(offset);
  request.mutable_chunk()->set_data(data);
  stream_->Write(request);
}

void Upload::FinishUpload(uint64_t total_bytes) {
  v1::UploadDocumentRequest request;
  request.mutable_finish()->set_total_bytes(total_bytes);
  stream_->Write(request);
}

v1::UploadDocumentEvent Upload::Next() {
  v1::UploadDocumentEvent event;
  if (!stream_->Read(&event)) event.Clear();
  return event;
}

v1::UploadDocumentEvent Upload::NextOf(v1::UploadDocumentEvent::EventCase kind) {
  for (;;) {
    v1::UploadDocumentEvent event = Next();
    if (event.event_case() == kind) return event;
    if (event.event_case() == v1::UploadDocumentEvent::EVENT_NOT_SET) {
      ADD_FAILURE() << "the stream ended";
      return event;
    }
  }
}

grpc::Status Upload::Finish() {
  while (Next().event_case() != v1::UploadDocumentEvent::EVENT_NOT_SET) {
  }
  return stream_->Finish();
}

void UploadWhole(TestServer* server, const std::string& id, const std::string& text) {
  Upload upload(server->channel());
  upload.Header(id);
  upload.Chunk(0, text);
  upload.FinishUpload(text.size());
  const grpc::Status status = upload.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
}

v1::GenerateRequest Ask(const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_prompt(prompt);
  return request;
}

v1::GenerateRequest AskDocument(const std::string& id, const std::string& question) {
  v1::GenerateRequest request;
  request.mutable_document()->set_document_id(id);
  request.mutable_document()->set_text(question);
  return request;
}

DeltaEvent Delta(const std::string& text, int32_t token) {
  DeltaEvent delta;
  delta.text = text;
  delta.tokens = {token};
  return delta;
}

CompletedEvent Completed(int tokens) {
  CompletedEvent completed;
  completed.usage.completion_tokens = tokens;
  return completed;
}

std::string Details::field() const {
  if (!bad_request.has_value() || bad_request->field_violations_size() != 1) return "";
  return bad_request->field_violations(0).field();
}

std::vector<std::string> Details::fields() const {
  std::vector<std::string> names;
  if (!bad_request.has_value()) return names;
  for (const auto& violation : bad_request->field_violations()) names.push_back(violation.field());
  return names;
}

Details DetailsOf(const grpc::Status& status) {
  google::rpc::Status packed;
  EXPECT_TRUE(packed.ParseFromString(status.error_details()));
  EXPECT_EQ(packed.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(packed.message(), status.error_message());
  Details details;
  for (const google::protobuf::Any& any : packed.details()) {
    if (any.Is<google::rpc::ErrorInfo>()) any.UnpackTo(&details.info);
    if (any.Is<google::rpc::RetryInfo>()) any.UnpackTo(&details.retry.emplace());
    if (any.Is<google::rpc::QuotaFailure>()) any.UnpackTo(&details.quota.emplace());
    if (any.Is<google::rpc::BadRequest>()) any.UnpackTo(&details.bad_request.emplace());
  }
  return details;
}

}  // namespace folio::testing
