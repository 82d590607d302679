#include "tests/client/fake_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

#include "google/rpc/status.pb.h"

namespace folio::testing {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

uint32_t TokenId(const std::string& word) {
  return static_cast<uint32_t>(std::hash<std::string>()(word) % 32000);
}

// Writes a script; deletes itself.
class ScriptReactor final : public grpc::ServerWriteReactor<v1::GenerateEvent> {
 public:
  ScriptReactor(Script script, std::function<void()> on_cancel)
      : script_(std::move(script)), on_cancel_(std::move(on_cancel)) {
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return FinishOnce(grpc::Status::CANCELLED);
    WriteNext();
  }
  void OnCancel() override {
    on_cancel_();
    FinishOnce(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    if (next_ < script_.events.size()) {
      StartWrite(&script_.events[next_++]);
    } else if (!script_.hang) {
      finished_ = true;
      Finish(script_.status);
    }
  }
  void FinishOnce(const grpc::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(finished_, true)) return;
    Finish(status);
  }

  Script script_;
  const std::function<void()> on_cancel_;
  std::mutex mutex_;
  size_t next_ = 0;
  bool finished_ = false;
};

}  // namespace

void NumberEvents(std::vector<v1::GenerateEvent>* events) {
  for (size_t i = 0; i < events->size(); ++i) {
    (*events)[i].set_sequence(i);
    (*events)[i].set_request_id("fake");
  }
}

Script AnswerScript(const v1::GenerateRequest& request, const std::string& answer) {
  Script script;
  const uint64_t num_prompt_tokens =
      Words(request.has_document() ? request.document().text() : request.prompt()).size() + 1;
  v1::Accepted* accepted = script.events.emplace_back().mutable_accepted();
  *accepted->mutable_strategy() = request.strategy();
  if (request.strategy().has_lm_infinite() && !request.strategy().lm_infinite().has_window()) {
    accepted->mutable_strategy()->mutable_lm_infinite()->set_window(64);
  }
  accepted->set_prompt_tokens(num_prompt_tokens);
  v1::PrefillProgress* prefill = script.events.emplace_back().mutable_prefill();
  prefill->set_total_tokens(num_prompt_tokens);
  prefill->set_processed_tokens(num_prompt_tokens);
  const std::vector<std::string> words = Words(answer);
  for (const std::string& word : words) {
    v1::Delta* delta = script.events.emplace_back().mutable_delta();
    delta->set_text(" " + word);
    delta->add_token_ids(TokenId(word));
  }
  v1::Completed* completed = script.events.emplace_back().mutable_completed();
  completed->set_finish_reason(v1::Completed::FINISH_REASON_LENGTH);
  completed->mutable_usage()->set_prompt_tokens(num_prompt_tokens);
  completed->mutable_usage()->set_completion_tokens(words.size());
  completed->mutable_timings()->set_time_to_first_token_seconds(0.25);
  completed->mutable_timings()->set_tokens_per_second(40);
  completed->mutable_memory()->set_device_kv_bytes_peak(3 << 20);
  NumberEvents(&script.events);
  return script;
}

grpc::Status RichStatus(grpc::StatusCode code, const std::string& message,
                        const std::vector<const google::protobuf::Message*>& details) {
  google::rpc::Status rich;
  rich.set_code(code);
  rich.set_message(message);
  for (const google::protobuf::Message* detail : details) rich.add_details()->PackFrom(*detail);
  return grpc::Status(code, message, rich.SerializeAsString());
}

class FakeServer::Inference final : public v1::Inference::CallbackService {
 public:
  explicit Inference(FakeServer& fake) : fake_(fake) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    if (request->has_document()) fake_.AddRoute("Generate", *context);
    {
      const std::lock_guard<std::mutex> lock(fake_.mutex_);
      fake_.requests_.push_back(*request);
      fake_.peers_.insert(context->peer());
    }
    std::call_once(fake_.generate_began_once_, [this] { fake_.generate_began_.set_value(); });
    Script script = fake_.on_generate ? fake_.on_generate(*request) : fake_.DefaultAnswer(*request);
    return new ScriptReactor(std::move(script), [this] {
      std::call_once(fake_.cancelled_once_, [this] { fake_.cancelled_.set_value(); });
    });
  }

 private:
  FakeServer& fake_;
};

class FakeServer::Documents final : public v1::Documents::Service {
 public:
  explicit Documents(FakeServer& fake) : fake_(fake) {}

  using Stream = grpc::ServerReaderWriter<v1::UploadDocumentEvent, v1::UploadDocumentRequest>;

  grpc::Status UploadDocument(grpc::ServerContext* context, Stream* stream) override {
    fake_.AddRoute("UploadDocument", *context);
    v1::UploadDocumentRequest request;
    if (!stream->Read(&request) || !request.has_header()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "no header"};
    }
    const std::string id = Begin(request.header());
    if (id.empty()) return {grpc::StatusCode::ALREADY_EXISTS, "the document is finished"};
    v1::UploadDocumentEvent event;
    event.mutable_created()->set_document_id(id);
    event.mutable_created()->set_next_offset(Size(id));
    stream->Write(event);
    while (stream->Read(&request)) {
      if (request.has_finish()) return Finish(id, request.finish(), stream);
      const grpc::Status status = Append(id, request.chunk());
      if (!status.ok()) return status;
      event.mutable_ack()->set_next_offset(Size(id));
      stream->Write(event);
    }
    return {grpc::StatusCode::CANCELLED, "the client is gone"};
  }

  grpc::Status GetDocument(grpc::ServerContext* context, const v1::GetDocumentRequest* request,
                           v1::Document* response) override {
    fake_.AddRoute("GetDocument", *context);
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    const auto found = fake_.documents_.find(request->document_id());
    if (found == fake_.documents_.end()) return {grpc::StatusCode::NOT_FOUND, "no such document"};
    *response = found->second.document;
    return grpc::Status::OK;
  }

  grpc::Status UpdateDocument(grpc::ServerContext* context,
                              const v1::UpdateDocumentRequest* request,
                              v1::Document* response) override {
    fake_.AddRoute("UpdateDocument", *context);
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    const auto found = fake_.documents_.find(request->document_id());
    if (found == fake_.documents_.end()) return {grpc::StatusCode::NOT_FOUND, "no such document"};
    v1::Document& document = found->second.document;
    if (request->has_ttl()) *document.mutable_ttl() = request->ttl();
    if (request->has_pinned()) document.set_pinned(request->pinned());
    for (const std::string& key : request->remove_labels()) document.mutable_labels()->erase(key);
    for (const auto& [key, value] : request->set_labels()) {
      (*document.mutable_labels())[key] = value;
    }
    *response = document;
    return grpc::Status::OK;
  }

  // Half prefilled first, then as it is.
  grpc::Status WatchDocument(grpc::ServerContext* context, const v1::WatchDocumentRequest* request,
                             grpc::ServerWriter<v1::Document>* stream) override {
    fake_.AddRoute("WatchDocument", *context);
    const auto documents = fake_.documents();
    const auto found = documents.find(request->document_id());
    if (found == documents.end()) return {grpc::StatusCode::NOT_FOUND, "no such document"};
    v1::Document document = found->second.document;
    document.set_state(v1::Document::STATE_PREFILLING);
    document.set_prefilled_tokens(document.token_count() / 2);
    stream->Write(document);
    stream->Write(found->second.document);
    return grpc::Status::OK;
  }

  // Two documents on a page.
  grpc::Status ListDocuments(grpc::ServerContext*, const v1::ListDocumentsRequest* request,
                             v1::ListDocumentsResponse* response) override {
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    auto next = fake_.documents_.upper_bound(request->page_token());
    for (; next != fake_.documents_.end() && response->documents_size() < 2; ++next) {
      const auto& labels = next->second.document.labels();
      const auto wanted = [&labels](const auto& label) {
        const auto it = labels.find(label.first);
        return it != labels.end() && it->second == label.second;
      };
      if (!std::all_of(request->labels().begin(), request->labels().end(), wanted)) continue;
      *response->add_documents() = next->second.document;
    }
    if (next != fake_.documents_.end()) {
      response->set_next_page_token(response->documents(1).document_id());
    }
    return grpc::Status::OK;
  }

  grpc::Status DeleteDocument(grpc::ServerContext* context,
                              const v1::DeleteDocumentRequest* request,
                              v1::DeleteDocumentResponse*) override {
    fake_.AddRoute("DeleteDocument", *context);
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    if (fake_.documents_.erase(request->document_id()) == 0) {
      return {grpc::StatusCode::NOT_FOUND, "no such document"};
    }
    ++fake_.num_deleted_;
    return grpc::Status::OK;
  }

 private:
  // The id of the document, empty if it is finished already.
  std::string Begin(const v1::DocumentHeader& header) {
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.headers_.push_back(header);
    std::string id = header.document_id();
    if (id.empty()) id = "generated-" + std::to_string(fake_.headers_.size());
    v1::Document& document = fake_.documents_[id].document;
    if (document.state() > v1::Document::STATE_UPLOADING) return "";
    document.set_document_id(id);
    document.set_display_name(header.display_name());
    *document.mutable_strategy() = header.strategy();
    if (header.has_ttl()) *document.mutable_ttl() = header.ttl();
    document.set_pinned(header.pinned());
    *document.mutable_labels() = header.labels();
    document.set_state(v1::Document::STATE_UPLOADING);
    return id;
  }

  uint64_t Size(const std::string& id) {
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    return fake_.documents_[id].text.size();
  }

  grpc::Status Append(const std::string& id, const v1::DocumentChunk& chunk) {
    const std::lock_guard<std::mutex> lock(fake_.mutex_);
    std::string& text = fake_.documents_[id].text;
    if (chunk.offset() != text.size()) return {grpc::StatusCode::INVALID_ARGUMENT, "wrong offset"};
    fake_.chunk_offsets_.push_back(chunk.offset());
    text += chunk.data();
    const std::vector<uint64_t>& breaks = fake_.break_uploads_at;
    if (fake_.num_breaks_ < breaks.size() && text.size() >= breaks[fake_.num_breaks_]) {
      ++fake_.num_breaks_;
      text.resize(text.size() - std::min<size_t>(text.size(), fake_.lose_bytes));
      return {grpc::StatusCode::UNAVAILABLE, "broken on purpose"};
    }
    return grpc::Status::OK;
  }

  grpc::Status Finish(const std::string& id, const v1::FinishUpload& finish, Stream* stream) {
    v1::UploadDocumentEvent event;
    {
      const std::lock_guard<std::mutex> lock(fake_.mutex_);
      Stored& stored = fake_.documents_[id];
      if (finish.total_bytes() != stored.text.size()) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "wrong length"};
      }
      const uint64_t num_tokens = Words(stored.text).size();
      stored.document.set_size_bytes(stored.text.size());
      stored.document.set_token_count(num_tokens);
      stored.document.set_state(fake_.hold_prefill ? v1::Document::STATE_PREFILLING
                                                   : v1::Document::STATE_READY);
      event.mutable_progress()->set_known_tokens(num_tokens);
      event.mutable_progress()->set_prefilled_tokens(fake_.hold_prefill ? 0 : num_tokens);
    }
    // A held prefill reports itself until the client goes away.
    bool connected = stream->Write(event);
    while (fake_.hold_prefill && connected) connected = stream->Write(event);
    {
      const std::lock_guard<std::mutex> lock(fake_.mutex_);
      *event.mutable_ready() = fake_.documents_[id].document;
    }
    stream->Write(event);
    return grpc::Status::OK;
  }

  FakeServer& fake_;
};

FakeServer::FakeServer()
    : inference_(std::make_unique<Inference>(*this)),
      documents_service_(std::make_unique<Documents>(*this)) {
  info.mutable_model()->set_name("fake");
  info.mutable_model()->set_max_position_embeddings(64);
  info.mutable_limits()->set_max_inline_prompt_bytes(1 << 20);
  int port = 0;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(inference_.get());
  builder.RegisterService(documents_service_.get());
  builder.RegisterService(static_cast<v1::Text::Service*>(this));
  builder.RegisterService(static_cast<v1::Control::Service*>(this));
  server_ = builder.BuildAndStart();
  target_ = "127.0.0.1:" + std::to_string(port);
}

FakeServer::~FakeServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void FakeServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus("", serving);
}

std::shared_ptr<grpc::Channel> FakeServer::Connect() const {
  return grpc::CreateChannel(target_, grpc::InsecureChannelCredentials());
}

std::vector<v1::GenerateRequest> FakeServer::requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

std::set<std::string> FakeServer::peers() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peers_;
}

std::vector<std::string> FakeServer::routes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return routes_;
}

void FakeServer::AddRoute(const char* method, const grpc::ServerContextBase& context) {
  const auto id = context.client_metadata().find("x-document-id");
  const bool has_id = id != context.client_metadata().end();
  const std::lock_guard<std::mutex> lock(mutex_);
  routes_.push_back(std::string(method) + " " +
                    (has_id ? std::string(id->second.data(), id->second.size()) : "without an id"));
}

std::map<std::string, FakeServer::Stored> FakeServer::documents() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return documents_;
}

std::vector<v1::DocumentHeader> FakeServer::headers() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return headers_;
}

std::vector<uint64_t> FakeServer::chunk_offsets() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return chunk_offsets_;
}

void FakeServer::StoreDocument(const std::string& id, const std::string& text,
                               v1::Document::State state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stored& stored = documents_[id];
  stored.text = text;
  stored.document.set_document_id(id);
  stored.document.set_size_bytes(text.size());
  stored.document.set_state(state);
}

grpc::Status FakeServer::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                                  v1::TokenizeResponse* response) {
  if (request->add_bos()) response->add_token_ids(1);
  for (const std::string& word : Words(request->text())) response->add_token_ids(TokenId(word));
  return grpc::Status::OK;
}

grpc::Status FakeServer::ListRequests(grpc::ServerContext*, const v1::ListRequestsRequest* request,
                                      v1::ListRequestsResponse* response) {
  for (int phase = v1::RequestInfo::PHASE_READING; phase <= v1::RequestInfo::PHASE_DECODE;
       ++phase) {
    if (request->max_requests() > 0 && phase > static_cast<int>(request->max_requests())) break;
    v1::RequestInfo* info = response->add_requests();
    info->set_request_id("req-" + std::to_string(phase));
    info->set_method("Generate");
    info->set_client("10.0.0.7");
    info->set_document_id(phase == v1::RequestInfo::PHASE_DECODE ? "book" : "");
    info->set_strategy("full");
    info->set_phase(static_cast<v1::RequestInfo::Phase>(phase));
    info->set_age_seconds(1.25 * phase);
    info->set_prompt_tokens(900);
    info->set_completion_tokens(17);
  }
  response->set_total(5);
  return grpc::Status::OK;
}

grpc::Status FakeServer::CancelRequest(grpc::ServerContext*,
                                       const v1::CancelRequestRequest* request,
                                       v1::CancelRequestResponse* response) {
  if (request->request_id() != "req-2") return {grpc::StatusCode::NOT_FOUND, "no such request"};
  response->set_num_cancelled(1);
  return grpc::Status::OK;
}

grpc::Status FakeServer::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                       v1::ServerInfo* response) {
  *response = info;
  return grpc::Status::OK;
}

bool FakeServer::Wait(const std::shared_future<void>& future) {
  return future.wait_for(std::chrono::seconds(100)) == std::future_status::ready;
}

Script FakeServer::DefaultAnswer(const v1::GenerateRequest& request) const {
  std::string text = request.prompt();
  if (request.has_document()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = documents_.find(request.document().document_id());
    if (found == documents_.end()) {
      return {{}, {grpc::StatusCode::NOT_FOUND, "no such document"}, false};
    }
    text = found->second.text;
  }
  constexpr char kNeedle[] = "The pass key is ";
  const size_t needle = text.find(kNeedle);
  if (needle != std::string::npos && needle + sizeof(kNeedle) + 5 < text.size()) {
    return AnswerScript(request, text.substr(needle + sizeof(kNeedle) - 1, 5) + ".");
  }
  std::string answer;
  for (uint32_t i = 0; i < request.stopping().max_new_tokens(); ++i) {
    answer += " w" + std::to_string(TokenId(text + std::to_string(i)));
  }
  return AnswerScript(request, answer);
}

}  // namespace folio::testing
