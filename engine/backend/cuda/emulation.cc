// Blocks one after the other, the threads of a block as fibers that take turns at barriers: in
// every second block the last thread first, so that a missing barrier shows wherever it matters who
// comes first. Slow and exact.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "engine/backend/cuda/simt.h"

// Saves the registers that a function must keep on this stack, notes its top in *from, and goes on
// where the other stack left off. (swapcontext makes two system calls.)
extern "C" void folio_switch_stack(void** from, void* to);
asm(R"(
.text
.globl folio_switch_stack
.type folio_switch_stack, @function
folio_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size folio_switch_stack, .-folio_switch_stack
)");

// ThreadSanitizer sees every thread of a block as one of its own, ordered by nothing but barriers:
// in its builds the tests find what compute-sanitizer's racecheck looks for, in shared memory and
// between blocks.
#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

namespace folio::cuda {
namespace {

// The emulator's own work on fibers is not to be seen.
#define FOLIO_UNSEEN __attribute__((no_sanitize("thread")))

#ifdef __SANITIZE_THREAD__
constexpr bool kSeesRaces = true;
constexpr unsigned kWithoutOrder = 1;
FOLIO_UNSEEN void* ThisThread() { return __tsan_get_current_fiber(); }
FOLIO_UNSEEN void* NewThread() { return __tsan_create_fiber(0); }
FOLIO_UNSEEN void SeeAs(void* thread) { __tsan_switch_to_fiber(thread, kWithoutOrder); }
FOLIO_UNSEEN void Acquire(char* at) { __tsan_acquire(at); }
FOLIO_UNSEEN void Release(char* at) { __tsan_release(at); }
#else
constexpr bool kSeesRaces = false;
FOLIO_UNSEEN void* ThisThread() { return nullptr; }
FOLIO_UNSEEN void* NewThread() { return nullptr; }
FOLIO_UNSEEN void SeeAs(void*) {}
FOLIO_UNSEEN void Acquire(char*) {}
FOLIO_UNSEEN void Release(char*) {}
#endif

}  // namespace

dim3 threadIdx;
dim3 blockIdx;
dim3 gridDim;
dim3 blockDim;

namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxCopies = 128;
constexpr int kCopyBytes = 16;
constexpr size_t kStackBytes = 128 << 10;
// Frames of the lanes of a warp lie apart in the sets of the first-level cache.
constexpr int kStackShift = 320;

enum class State : char { kReady, kAtBlockBarrier, kAtWarpBarrier, kExchanging, kDone };

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Fiber {
  void* top = nullptr;  // of the stack, while it does not run
  std::unique_ptr<char[]> stack;
  void* seen_as = nullptr;
  // What it gives to a shuffle or a product, in turns: nobody is two of them ahead.
  uint32_t given[2][6] = {};
  int turn = 0;
};

// Of one thread.
struct CopiesUnderWay {
  Copy copies[kMaxCopies];
  int num_copies = 0;
  int group = 0;
};

struct Block {
  // Apart, because states are looked through at every turn.
  State states[kMaxThreads];
  Fiber fibers[kMaxThreads];
  CopiesUnderWay copies[kMaxThreads];
  void* scheduler = nullptr;  // top of the stack of RunBlock
  void* scheduler_seen_as = nullptr;
  const std::function<void()>* thread = nullptr;
  int running = 0;
  int size = 0;
  bool backwards = false;
  char* shared = nullptr;
  // One for the block and one for each warp; of this block alone.
  char* barriers = nullptr;
};

Block block;
char kernel_begin;
char kernel_end;

FOLIO_UNSEEN char* BarrierOf(State barrier, int i) {
  return block.barriers + (barrier == State::kAtBlockBarrier ? 0 : 1 + i / kWarp);
}

// The one after thread i that can run, in the order of this block; -1: none.
FOLIO_UNSEEN int NextReady(int i) {
  const char ready = static_cast<char>(State::kReady);
  const void* at = block.backwards ? memrchr(block.states, ready, static_cast<size_t>(i))
                                   : std::memchr(block.states + i + 1, ready, block.size - i - 1);
  return at == nullptr ? -1 : static_cast<int>(static_cast<const State*>(at) - block.states);
}

FOLIO_UNSEEN void SwitchTo(int i, void** from) {
  block.running = i;
  threadIdx = {static_cast<unsigned>(i), 0, 0};
  SeeAs(block.fibers[i].seen_as);
  folio_switch_stack(from, block.fibers[i].top);
}

// Leaves the thread that runs, for the next one or, behind the last one, for RunBlock.
FOLIO_UNSEEN void Wait(State at) {
  const int self = block.running;
  void** from = &block.fibers[self].top;
  block.states[self] = at;
  const int next = NextReady(self);
  if (next >= 0) return SwitchTo(next, from);
  SeeAs(block.scheduler_seen_as);
  folio_switch_stack(from, block.scheduler);
}

[[noreturn]] FOLIO_UNSEEN void RunFiber() {
  Acquire(&kernel_begin);
  (*block.thread)();
  Release(&kernel_end);
  Wait(State::kDone);
  std::abort();  // nobody wakes what is done
}

// A barrier orders memory; an exchange of values does not.
FOLIO_UNSEEN void WaitInOrder(State barrier) {
  char* at = BarrierOf(barrier, block.running);
  Release(at);
  Wait(barrier);
  Acquire(at);
}

// RunFiber and what it calls last are never left: to AddressSanitizer their frames are still there.
void ForgetFrames([[maybe_unused]] char* end) {
#ifdef __SANITIZE_ADDRESS__
  constexpr size_t kMostBytes = 4096;
  ASAN_UNPOISON_MEMORY_REGION(end - kMostBytes, kMostBytes);
#endif
}

// A stack on which folio_switch_stack returns into RunFiber, six registers popped.
FOLIO_UNSEEN void Start(int i) {
  Fiber& fiber = block.fibers[i];
  if (fiber.stack == nullptr) {
    fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.seen_as = NewThread();
  }
  char* end = fiber.stack.get() + kStackBytes - i % kWarp * kStackShift;
  end -= reinterpret_cast<uintptr_t>(end) % 16;
  ForgetFrames(end);
  auto* words = reinterpret_cast<void**>(end);
  words[-1] = nullptr;
  words[-2] = reinterpret_cast<void*>(&RunFiber);
  for (int n = 3; n <= 8; ++n) words[-n] = nullptr;
  fiber.top = &words[-8];
  fiber.turn = 0;
  block.states[i] = State::kReady;
  block.copies[i].num_copies = 0;
}

// Sets the fibers [begin, end) free if all that live wait at one barrier.
FOLIO_UNSEEN bool SetFree(int begin, int end, State barrier) {
  bool any = false;
  for (int i = begin; i < end; ++i) {
    if (block.states[i] == State::kDone) continue;
    if (block.states[i] != barrier) return false;
    any = true;
  }
  for (int i = begin; any && i < end; ++i) {
    if (block.states[i] == barrier) block.states[i] = State::kReady;
  }
  return any;
}

FOLIO_UNSEEN void RunBlock() {
  for (int i = 0; i < block.size; ++i) Start(i);
  for (;;) {
    const int first = NextReady(block.backwards ? block.size : -1);
    if (first >= 0) SwitchTo(first, &block.scheduler);
    bool released = SetFree(0, block.size, State::kAtBlockBarrier);
    for (int warp = 0; warp < block.size; warp += kWarp) {
      const int end = warp + kWarp < block.size ? warp + kWarp : block.size;
      released = SetFree(warp, end, State::kAtWarpBarrier) || released;
      released = SetFree(warp, end, State::kExchanging) || released;
    }
    if (released) continue;
    bool all_done = true;
    for (int i = 0; i < block.size; ++i) all_done &= block.states[i] == State::kDone;
    if (all_done) return;
    if (first < 0) {
      std::fprintf(stderr, "emulated kernel: threads wait at different barriers\n");
      std::abort();
    }
  }
}

// What the lanes of a warp gave.
struct Given {
  const Fiber* warp;
  int turn;
  FOLIO_UNSEEN uint32_t operator()(int lane, int word) const {
    return warp[lane].given[turn][word];
  }
};
FOLIO_UNSEEN Given Exchange(uint32_t w0, uint32_t w1 = 0, uint32_t w2 = 0, uint32_t w3 = 0,
                            uint32_t w4 = 0, uint32_t w5 = 0) {
  Fiber& self = block.fibers[block.running];
  const int turn = self.turn;
  self.turn = 1 - turn;
  uint32_t* given = self.given[turn];
  given[0] = w0;
  given[1] = w1;
  given[2] = w2;
  given[3] = w3;
  given[4] = w4;
  given[5] = w5;
  Wait(State::kExchanging);
  return {&block.fibers[block.running / kWarp * kWarp], turn};
}

FOLIO_UNSEEN float HalfOf(uint32_t word, int which) {
  return std::bit_cast<float>(which == 0 ? word << 16 : word & 0xffff0000u);
}

}  // namespace

void __syncthreads() { WaitInOrder(State::kAtBlockBarrier); }
void __syncwarp() { WaitInOrder(State::kAtWarpBarrier); }

FOLIO_UNSEEN float __shfl_xor_sync(unsigned, float value, int lane_mask) {
  const Given given = Exchange(std::bit_cast<uint32_t>(value));
  return std::bit_cast<float>(given(block.running % kWarp ^ lane_mask, 0));
}

// PTX ISA, mma.m16n8k16: lane l is in group g = l / 4 at place t = l % 4. a0 holds A[g][2t, 2t+1],
// a1 A[g+8][2t, 2t+1], a2 A[g][2t+8, 2t+9], a3 A[g+8][2t+8, 2t+9]; b0 B[2t, 2t+1][g], b1
// B[2t+8, 2t+9][g]; c C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1].
FOLIO_UNSEEN void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Given given = Exchange(a[0], a[1], a[2], a[3], b0, b1);
  const int lane = block.running % kWarp;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i < 2 ? 0 : 8);
    const int column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = given(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2);
      const uint32_t right = given(column * 4 + k % 8 / 2, 4 + k / 8);
      sum += HalfOf(left, k % 2) * HalfOf(right, k % 2);
    }
    c[i] += sum;
  }
}

// PTX ISA, movmatrix: lane l gives row l / 4, columns 2 (l % 4) and the next.
FOLIO_UNSEEN uint32_t Transpose8x8(uint32_t word) {
  const Given given = Exchange(word);
  const int lane = block.running % kWarp;
  const int column = lane / 4;
  uint32_t result = 0;
  for (int n = 0; n < 2; ++n) {
    const int row = lane % 4 * 2 + n;
    const uint32_t half = given(row * 4 + column / 2, 0) >> (16 * (column % 2)) & 0xffffu;
    result |= half << (16 * n);
  }
  return result;
}

// Nobody knows when a copy happens: in one block at once, in the next when it is waited for.
void CopyAsync(void* shared, const void* global) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % kCopyBytes) {
    std::fprintf(stderr, "emulated kernel: a copy of 16 bytes that are not aligned to as many\n");
    std::abort();
  }
  CopiesUnderWay& self = block.copies[block.running];
  if (!block.backwards) {
    std::memcpy(shared, global, kCopyBytes);
  } else if (self.num_copies < kMaxCopies) {
    self.copies[self.num_copies++] = {shared, global, self.group};
  } else {
    std::fprintf(stderr, "emulated kernel: more copies under way than are kept\n");
    std::abort();
  }
}

void CommitCopies() { ++block.copies[block.running].group; }

void FinishCopies(int num_groups_left) {
  CopiesUnderWay& self = block.copies[block.running];
  int left = 0;
  for (int n = 0; n < self.num_copies; ++n) {
    const Copy copy = self.copies[n];
    if (copy.group < self.group - num_groups_left) {
      std::memcpy(copy.to, copy.from, kCopyBytes);
    } else {
      self.copies[left++] = copy;
    }
  }
  self.num_copies = left;
}

FOLIO_UNSEEN void* EmulatedShared() { return block.shared; }

FOLIO_UNSEEN void RunGrid(dim3 grid, int block_size, int shared_bytes,
                          const std::function<void()>& thread) {
  block.size = block_size;
  block.thread = &thread;
  block.scheduler_seen_as = ThisThread();
  gridDim = grid;
  blockDim = {static_cast<unsigned>(block_size), 1, 1};
  const int barrier_bytes = 1 + (block_size + kWarp - 1) / kWarp;
  // Kept to the end: what a later block does to the memory of an earlier one would look like a
  // race.
  std::vector<std::unique_ptr<char[]>> memory;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        if (memory.empty() || kSeesRaces) {
          memory.push_back(std::make_unique<char[]>(shared_bytes + barrier_bytes));
        }
        // Poisoned: what a kernel reads it must have written.
        block.shared = memory.back().get();
        std::memset(block.shared, 0xff, shared_bytes);
        block.barriers = block.shared + shared_bytes;
        block.backwards = !block.backwards;
        Release(&kernel_begin);
        RunBlock();
      }
    }
  }
  Acquire(&kernel_end);
}

}  // namespace folio::cuda
