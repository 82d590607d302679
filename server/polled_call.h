#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/event_pump.h"
#include "server/unary_call.h"

namespace folio::server {

// A unary call that ends when something has happened, for which it looks again and again. Ends
// early when the client is gone, or the pump stops its streams. Owns itself until then.
class PolledCall final : public PumpTarget, public std::enable_shared_from_this<PolledCall> {
 public:
  // nullopt: not yet. Asked at once, then about every EventPump::kTick, never twice at once.
  using Poll = std::function<std::optional<grpc::Status>()>;
  // Returns the call, for gRPC.
  static grpc::ServerUnaryReactor* Start(ServiceContext* context, UnaryCall* call, Poll poll);

 private:
  PolledCall(ServiceContext* context, UnaryCall* call, Poll poll)
      : context_(context), call_(call), poll_(std::move(poll)) {}

  void Handle(Event) override {}
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;
  void End(const grpc::Status& status);

  ServiceContext* const context_;
  UnaryCall* call_;  // null: it has ended
  const Poll poll_;
};

}  // namespace folio::server
