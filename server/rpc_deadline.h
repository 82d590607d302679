#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>

namespace folio::server {

// When the client gives a call up; max(): never. gRPC's time can be further away than std::chrono
// counts, in nanoseconds to the year 2262, and its own conversion overflows then.
inline std::chrono::system_clock::time_point DeadlineOf(const grpc::CallbackServerContext& rpc) {
  using Time = std::chrono::system_clock::time_point;
  constexpr auto kLast =
      std::chrono::duration_cast<std::chrono::seconds>(Time::max().time_since_epoch());
  const gpr_timespec deadline = gpr_convert_clock_type(rpc.raw_deadline(), GPR_CLOCK_REALTIME);
  return deadline.tv_sec < kLast.count() ? rpc.deadline() : Time::max();
}

}  // namespace folio::server
