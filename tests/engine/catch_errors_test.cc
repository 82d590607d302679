#include "engine/base/catch_errors.h"

#include <new>
#include <stdexcept>

#include "gtest/gtest.h"

namespace folio {
namespace {

TEST(CatchErrors, SaysWhatWasThrown) {
  EXPECT_TRUE(CatchErrors([] {}).ok());
  EXPECT_EQ(CatchErrors([] { throw std::bad_alloc(); }), OutOfMemory());
  EXPECT_EQ(OutOfMemory().code(), absl::StatusCode::kResourceExhausted);
  const absl::Status other = CatchErrors([] { throw std::out_of_range("index 7"); });
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_NE(other.message().find("index 7"), std::string::npos) << other;
}

TEST(CatchErrors, AStatusComesBackAsItIs) {
  const absl::Status late = absl::DeadlineExceededError("too late");
  EXPECT_EQ(StatusOf([&] { return late; }), late);
  EXPECT_EQ(StatusOf([]() -> absl::Status { throw std::bad_alloc(); }), OutOfMemory());
}

}  // namespace
}  // namespace folio
