#include "tests/faults/whole_server.h"

#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/engine/test_model.h"

namespace folio::testing {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> RealEngine(const EngineOptions& options) {
  return Engine::Create(options);
}

}  // namespace

server::ServerOptions WholeOptions() {
  server::ServerOptions options;
  options.engine.model_dir = test::TestData("../models/folio-tiny");
  options.engine.num_threads = 1;
  options.engine.kv_bytes = int64_t{32} << 20;
  options.engine.step_tokens = 64;
  options.engine.max_running_requests = 1;
  return options;
}

WholeServer::WholeServer(server::ServerOptions options, Model model)
    : TestServer(WithMetrics(std::move(options)), model, RealEngine) {}

void WholeServer::WaitUntilIdle() const {
  while (Metric("folio_engine_busy") + Metric("folio_num_requests_running") +
             Metric("folio_num_requests_waiting") >
         0) {
    std::this_thread::yield();
  }
}

double WholeServer::KvUsedWhenIdle() const {
  WaitUntilIdle();
  return Metric(R"(folio_kv_cache_bytes{tier="device",state="used"})");
}

double WholeServer::Handled(const std::string& method) const {
  double sum = 0;
  std::istringstream lines(Metrics());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("folio_grpc_server_handled_total{") &&
        line.find(absl::StrCat("grpc_method=\"", method, "\"")) != std::string::npos) {
      sum += std::stod(line.substr(line.rfind(' ')));
    }
  }
  return sum;
}

v1::GenerateRequest Work(int prompt_tokens, uint32_t new_tokens) {
  v1::GenerateRequest request;
  for (int n = 0; n < prompt_tokens; ++n) {
    request.mutable_prompt_token_ids()->add_ids(static_cast<uint32_t>(3 + n * n % 97));
  }
  request.mutable_strategy()->mutable_full();
  request.mutable_stopping()->set_max_new_tokens(new_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest WorkThatMightEnd(int prompt_tokens, uint32_t new_tokens) {
  v1::GenerateRequest request = Work(prompt_tokens, new_tokens);
  request.mutable_stopping()->add_stop("a text that no answer has");
  return request;
}

v1::GenerateRequest Question(const std::string& document, uint32_t new_tokens) {
  v1::GenerateRequest request = AskDocument(document, "Who saw the visions of God?");
  request.mutable_stopping()->set_max_new_tokens(new_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

Answer ReadAll(Generate* call) {
  Answer answer;
  for (;;) {
    const v1::GenerateEvent event = call->Next();
    if (event.event_case() == v1::GenerateEvent::EVENT_NOT_SET) break;
    answer.text += event.delta().text();
    if (event.has_completed()) answer.completed = event.completed();
  }
  answer.status = call->Finish();
  return answer;
}

Answer AnswerOf(const TestServer& server, const v1::GenerateRequest& request) {
  Generate call(server.channel(), request);
  return ReadAll(&call);
}

std::optional<v1::Document> FindDocument(const TestServer& server, const std::string& id) {
  grpc::ClientContext context;
  v1::GetDocumentRequest request;
  request.set_document_id(id);
  v1::Document document;
  const auto stub = v1::Documents::NewStub(server.channel());
  if (!stub->GetDocument(&context, request, &document).ok()) return std::nullopt;
  return document;
}

grpc::Status DeleteDocument(const TestServer& server, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteDocumentRequest request;
  request.set_document_id(id);
  v1::DeleteDocumentResponse response;
  return v1::Documents::NewStub(server.channel())->DeleteDocument(&context, request, &response);
}

std::string BookText(size_t bytes) {
  std::ifstream file(test::TestData("../models/texts/ezekiel.txt"));
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  EXPECT_EQ(static_cast<size_t>(file.gcount()), bytes);
  return text;
}

}  // namespace folio::testing
