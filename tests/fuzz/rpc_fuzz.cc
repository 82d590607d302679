// Any bytes as requests of any method, through the real server: every call ends, and not with what
// only a fault of the server ends with.
#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "tests/fuzz/rpc_target.h"

namespace {

// The fake engine keeps what it was asked.
constexpr int kInputsOfAServer = 10'000;

}  // namespace

// Thousands of lines each second otherwise.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<folio::testing::RpcTarget> target;
  static int num_inputs = 0;
  if (num_inputs++ % kInputsOfAServer == 0) target = std::make_unique<folio::testing::RpcTarget>();
  switch (target->Call({reinterpret_cast<const char*>(data), size}).error_code()) {
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      abort();
    default:
      return 0;
  }
}
