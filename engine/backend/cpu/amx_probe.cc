#include "engine/backend/cpu/amx_probe.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <setjmp.h>
#include <signal.h>

#include <array>
#include <cstddef>

#include "engine/backend/cpu/kernels/amx_tiles.h"

namespace folio {
namespace {

#if defined(__x86_64__)
using cpu::AmxTiles;
using cpu::kTileRowBytes;
using cpu::kTileRows;

constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr int kTileData = 18;               // XFEATURE_XTILEDATA

bool Announced() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tiles, bytes
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kNeeded) == kNeeded;
}

using Bytes = std::array<int8_t, kTileRows * kTileRowBytes>;

// C = A * B by the unit; numbers whose sums differ in every place.
Bytes a, b;
std::array<std::array<int32_t, kTileRows>, kTileRows> product;

void MultiplyOnce() {
  cpu::TileConfig config;
  for (int tile = 0; tile < 3; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  AmxTiles::Configure(config);
  AmxTiles::Zero<0>();
  AmxTiles::Load<1>(a.data(), kTileRowBytes);
  AmxTiles::Load<2>(b.data(), kTileRowBytes);
  AmxTiles::AddBytes<0, 1, 2>();
  AmxTiles::Store<0>(product.data(), sizeof(product[0]));
  AmxTiles::Release();
}

bool ProductIsRight() {
  for (int row = 0; row < kTileRows; ++row) {
    for (int column = 0; column < kTileRows; ++column) {
      int32_t sum = 0;
      for (int k = 0; k < kTileRowBytes; ++k) {
        sum += a[row * kTileRowBytes + k] * b[k / 4 * kTileRowBytes + column * 4 + k % 4];
      }
      if (product[row][column] != sum) return false;
    }
  }
  return true;
}

AmxState Probe() {
  if (!Announced()) return AmxState::kAbsent;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return AmxState::kNotPermitted;
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<int8_t>(i * 7 % 251);
    b[i] = static_cast<int8_t>(i * 11 % 241);
  }
  if (!RunsWithoutFault(MultiplyOnce)) return AmxState::kFaults;
  return ProductIsRight() ? AmxState::kWorks : AmxState::kWrong;
}
#else
AmxState Probe() { return AmxState::kAbsent; }
#endif

thread_local sigjmp_buf before_fault;

void LeaveFunction(int) { siglongjmp(before_fault, 1); }

}  // namespace

const char* AmxStateText(AmxState state) {
  switch (state) {
    case AmxState::kAbsent:
      return "no matrix unit";
    case AmxState::kNotPermitted:
      return "matrix unit announced, but not permitted by the operating system";
    case AmxState::kFaults:
      return "matrix unit announced, but its instructions fault";
    case AmxState::kWrong:
      return "matrix unit announced, but its products are wrong";
    case AmxState::kWorks:
      return "matrix unit";
  }
  return "?";
}

bool RunsWithoutFault(void (*function)()) {
  constexpr std::array kSignals = {SIGILL, SIGSEGV};
  std::array<struct sigaction, kSignals.size()> before;
  struct sigaction guard = {};
  guard.sa_handler = LeaveFunction;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &guard, &before[i]);
  volatile bool finished = false;
  if (sigsetjmp(before_fault, /*savesigs=*/1) == 0) {
    function();
    finished = true;
  }
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  return finished;
}

AmxState ProbeAmx() {
  static const AmxState state = Probe();
  return state;
}

}  // namespace folio
