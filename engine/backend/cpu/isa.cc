#include "engine/backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <initializer_list>

#include "engine/backend/cpu/amx_probe.h"

namespace folio {
namespace {

#if defined(__x86_64__)
// Features that not every compiler knows by name.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
}
bool HasAvx512Bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 5 & 1) != 0;
}
// With these instructions prompts are read at 0.58 of the speed of fp32 products on Sapphire Rapids
// (docs/performance.md), and nearly twice as fast on Zen 5.
bool HasFastBf16() { return HasAvx512Bf16() && !__builtin_cpu_is("intel"); }
// Of AMD's processors 25 is Zen 3 and Zen 4, 26 Zen 5.
unsigned Family() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
}
#else
bool HasFastBf16() { return false; }
#endif

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

bool CpuSupports(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Vnni:
      return vnni;
    case Isa::kAvx512Bf16:
      return vnni && HasAvx512Bf16();
    case Isa::kAmx:
      return vnni && HasAvx512Bf16() && ProbeAmx() == AmxState::kWorks;
  }
#endif
  return isa == Isa::kPortable;
}

Isa BestIsa() {
  if (CpuSupports(Isa::kAmx)) return Isa::kAmx;
  return CpuSupports(Isa::kAvx512Bf16) && HasFastBf16() ? Isa::kAvx512Bf16 : BestFp32Isa();
}

Isa BestFp32Isa() {
  for (Isa isa : {Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAvx2}) {
    if (CpuSupports(isa)) return isa;
  }
  return Isa::kPortable;
}

bool FetchesIntegers() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") && Family() >= 26;
#else
  return false;
#endif
}

}  // namespace folio
