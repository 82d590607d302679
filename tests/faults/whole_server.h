// The server with the real engine and the bundled model, in one process with its clients.
#pragma once

#include <optional>
#include <string>

#include "tests/server/test_server.h"

namespace folio::testing {

// One thread, a small cache, one request at a time.
server::ServerOptions WholeOptions();

class WholeServer : public TestServer {
 public:
  explicit WholeServer(server::ServerOptions options = WholeOptions(),
                       Model model = Model::kLoaded);

  // Blocks until no request runs or waits; metrics are up to date then.
  void WaitUntilIdle() const;
  // Bytes of KV cache in use then.
  double KvUsedWhenIdle() const;
  // Calls of a method that have ended, whatever their status.
  double Handled(const std::string& method) const;
};

// A request of so many prompt tokens whose answer has so many tokens, whatever they are.
v1::GenerateRequest Work(int prompt_tokens, uint32_t new_tokens);
// The same, whose answer might as well end early: it is not refused for a deadline before its end.
v1::GenerateRequest WorkThatMightEnd(int prompt_tokens, uint32_t new_tokens);
// A question about a document, the same way.
v1::GenerateRequest Question(const std::string& document, uint32_t new_tokens = 8);

// What came of a call that was read to its end.
struct Answer {
  grpc::Status status;
  std::string text;
  v1::Completed completed;
};
Answer ReadAll(Generate* call);
Answer AnswerOf(const TestServer& server, const v1::GenerateRequest& request);

std::optional<v1::Document> FindDocument(const TestServer& server, const std::string& id);
grpc::Status DeleteDocument(const TestServer& server, const std::string& id);

// Some text of the bundled book.
std::string BookText(size_t bytes);

}  // namespace folio::testing
