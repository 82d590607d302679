#include "engine/backend/cpu/amx_probe.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "engine/backend/cpu/cpu_backend.h"

namespace folio {
namespace {

bool ran = false;

TEST(AmxProbe, AFunctionThatFaultsEndsThere) {
  EXPECT_TRUE(RunsWithoutFault([] { ran = true; }));
  EXPECT_TRUE(ran);
  for (const int signal : {SIGILL, SIGSEGV}) {
    static int number;
    number = signal;
    ran = false;
    EXPECT_FALSE(RunsWithoutFault([] {
      raise(number);
      ran = true;
    }));
    EXPECT_FALSE(ran);
  }
}

TEST(AmxProbe, LeavesTheHandlersOfTheProcess) {
  struct sigaction mine = {}, after;
  mine.sa_handler = SIG_IGN;
  struct sigaction before;
  sigaction(SIGILL, &mine, &before);
  EXPECT_FALSE(RunsWithoutFault([] { raise(SIGILL); }));
  sigaction(SIGILL, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

// Whatever this machine is: either the kernels are taken, or a server says why they are not.
TEST(AmxProbe, TheBackendSaysWhatBecameOfTheUnit) {
  const AmxState state = ProbeAmx();
  const auto backend = *CreateCpuBackend({.num_threads = 1, .isa = {}});
  const bool says = backend->name().find(AmxStateText(state)) != std::string::npos;
  EXPECT_EQ(says, state != AmxState::kAbsent && state != AmxState::kWorks) << backend->name();
  if (state != AmxState::kWorks) {
    EXPECT_FALSE(CpuSupports(Isa::kAmx));
    EXPECT_NE(BestIsa(), Isa::kAmx);
  }
}

}  // namespace
}  // namespace folio
