#pragma once

#include <memory>
#include <string_view>

#include "tests/server/test_server.h"

namespace folio::testing {

// A server with a fake engine, for any bytes as requests of any method. It has the documents that
// requests may name: "book", which is ready, and "draft", of which "some text " has come.
class RpcTarget {
 public:
  RpcTarget();

  // The first byte picks the method, by its place in AllMethods; the rest is its request, or of a
  // method that takes a stream several, each behind its length in two bytes. Returns what the call
  // ended with: DEADLINE_EXCEEDED after a minute that the server gave no end to it.
  grpc::Status Call(std::string_view input);

 private:
  void RestoreDocuments();

  TestServer server_;
  // In process, a client that writes to a call that has ended waits until it reads.
  const std::shared_ptr<grpc::Channel> channel_ = server_.TcpChannel();
};

}  // namespace folio::testing
