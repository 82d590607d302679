// The matrix unit of x86 (AMX): eight tiles of up to 16 rows of 64 bytes. Source: Intel 64 and
// IA-32 Architectures Software Developer's Manual, volume 1 chapter 18 and volume 2.
#pragma once

#include <array>
#include <cstdint>

namespace folio::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// Operand of LDTILECFG: rows, and bytes of a row, of each tile.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {};
  std::array<uint8_t, 16> rows = {};

  void Set(int tile, int num_rows, int num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

#if defined(__x86_64__)
// The instructions, for processors that have them (amx_probe.h); in assembly, for g++'s intrinsics
// take tile numbers as text only and do not say that they read and write memory. Tests have a class
// of the same functions that does in C++ what the manual says. `stride` is in bytes. Products: C
// [rows][16] += A [rows][k] * B [k / n][16][n], n numbers in 4 bytes.
struct AmxTiles {
  static void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  // All tiles are empty: until the next Configure a change of threads saves nothing of them.
  static void Release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // bf16, in fp32: of a row's pairs the first numbers and the second ones are summed apart, from
  // zero, and their sum is added to C. Denormal numbers count as zeros.
  template <int kC, int kA, int kB>
  static void AddBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  // Signed bytes, in 32 bits.
  template <int kC, int kA, int kB>
  static void AddBytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};
#endif

}  // namespace folio::cpu
