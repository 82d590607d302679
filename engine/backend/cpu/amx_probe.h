#pragma once

#include <cstdint>

namespace folio {

// What became of the matrix unit of x86 (AMX) on this machine.
enum class AmxState : uint8_t {
  kAbsent,        // the processor does not announce it
  kNotPermitted,  // it does, but the operating system does not let a program use it
  kFaults,        // permitted, but its instructions end in a signal
  kWrong,         // they run, but a small product is not what it should be
  kWorks,
};
const char* AmxStateText(AmxState state);

// Asks the operating system for the unit (arch_prctl, ARCH_REQ_XCOMP_PERM) and tries it, the first
// time it is called. Hypervisors and kernels exist that announce it and do not let it run.
AmxState ProbeAmx();

// Runs `function`; false if it ended in SIGILL or SIGSEGV. It must not own anything. Not to be
// called by two threads at a time: the handler is the process's.
bool RunsWithoutFault(void (*function)());

}  // namespace folio
