#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "engine/base/catch_errors.h"
#include "server/status_mapping.h"

namespace folio::server {

// A call that ended before it began. Owns itself.
template <typename Reactor>
class EndedCall final : public Reactor {
 public:
  explicit EndedCall(grpc::Status status) { this->Finish(std::move(status)); }

 private:
  void OnDone() override { delete this; }
};

// The reactor that `begin` makes, for gRPC, which takes no exceptions: a call that finds no memory
// to begin with ends with RESOURCE_EXHAUSTED. Where there is not even memory to say so, nullptr:
// gRPC then ends the call.
template <typename Reactor>
Reactor* BeginCall(absl::FunctionRef<Reactor*()> begin) noexcept {
  Reactor* reactor = nullptr;
  const absl::Status begun = CatchErrors([&] { reactor = begin(); });
  if (begun.ok()) return reactor;
  CatchErrors([&] {
    reactor = std::make_unique<EndedCall<Reactor>>(ToGrpcStatus(begun)).release();
  }).IgnoreError();
  return reactor;
}

}  // namespace folio::server
