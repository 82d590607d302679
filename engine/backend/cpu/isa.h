#pragma once

#include <cstdint>

namespace folio {

// Instruction sets that kernels are built for, each including those before it.
enum class Isa : uint8_t {
  kPortable,    // whatever the compiler's baseline has
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and the dot products of bf16 and of bytes (VNNI)
};

inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

const char* IsaName(Isa isa);

// Whether this CPU can run kernels of `isa`.
bool CpuSupports(Isa isa);

// The best one this CPU can run, and the best of those that multiply in fp32.
Isa BestIsa();
Isa BestFp32Isa();

}  // namespace folio
