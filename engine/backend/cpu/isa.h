#pragma once

#include <cstdint>

namespace folio {

// Instruction sets that kernels are built for, each including those before it.
enum class Isa : uint8_t {
  kPortable,    // whatever the compiler's baseline has
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // and the dot products of bytes
  kAvx512Bf16,  // and those of bf16
  kAmx,         // the matrix unit, for bytes and bf16 (amx_probe.h)
};

inline constexpr Isa kAllIsas[] = {Isa::kPortable,   Isa::kAvx2,       Isa::kAvx512,
                                   Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

const char* IsaName(Isa isa);

// Whether this CPU can run kernels of `isa`.
bool CpuSupports(Isa isa);

// The fastest one this CPU can run, and the fastest of those that multiply bf16 in fp32.
Isa BestIsa();
Isa BestFp32Isa();

// Whether kernels of kAvx512Bf16 read weights of integers faster on this CPU if they fetch ahead
// what the next products want, however few those are: AMD's from Zen 5 on, whose vectors are twice
// as wide as those of Zen 4 (docs/performance.md).
bool FetchesIntegers();

}  // namespace folio
