// Blocks one after the other, the threads of a block as fibers that take turns at barriers: in
// every second block the last thread first, so that a missing barrier shows wherever it matters who
// comes first. Slow and exact.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

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

namespace folio::cuda {

dim3 threadIdx;
dim3 blockIdx;
dim3 gridDim;
dim3 blockDim;

namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  void* top = nullptr;  // of the stack, while it does not run
  std::unique_ptr<char[]> stack;
  State state = State::kReady;
  // What it gives to a shuffle or a product, in turns: nobody is two of them ahead.
  float slots[2] = {};
  uint32_t operands[2][6] = {};
  int turn = 0;
};

struct Block {
  std::vector<Fiber> fibers;
  void* scheduler = nullptr;  // top of the stack of RunBlock
  const std::function<void()>* thread = nullptr;
  int running = 0;
  int size = 0;
  bool backwards = false;
  std::vector<char> shared;
};

Block block;

[[noreturn]] void RunFiber() {
  (*block.thread)();
  Fiber& self = block.fibers[block.running];
  self.state = State::kDone;
  folio_switch_stack(&self.top, block.scheduler);
  std::abort();  // nobody wakes what is done
}

void Wait(State at) {
  Fiber& self = block.fibers[block.running];
  self.state = at;
  folio_switch_stack(&self.top, block.scheduler);
}

// A stack on which folio_switch_stack returns into RunFiber, six registers popped.
void Start(int i) {
  Fiber& fiber = block.fibers[i];
  if (fiber.stack == nullptr) fiber.stack = std::make_unique<char[]>(kStackBytes);
  char* end = fiber.stack.get() + kStackBytes;
  end -= reinterpret_cast<uintptr_t>(end) % 16;
  auto* words = reinterpret_cast<void**>(end);
  words[-1] = nullptr;
  words[-2] = reinterpret_cast<void*>(&RunFiber);
  for (int n = 3; n <= 8; ++n) words[-n] = nullptr;
  fiber.top = &words[-8];
  fiber.state = State::kReady;
  fiber.turn = 0;
}

// Sets the fibers [begin, end) free if all that live wait at one barrier.
bool Release(int begin, int end, State barrier) {
  bool any = false;
  for (int i = begin; i < end; ++i) {
    if (block.fibers[i].state == State::kDone) continue;
    if (block.fibers[i].state != barrier) return false;
    any = true;
  }
  for (int i = begin; any && i < end; ++i) {
    if (block.fibers[i].state == barrier) block.fibers[i].state = State::kReady;
  }
  return any;
}

void RunBlock() {
  for (int i = 0; i < block.size; ++i) Start(i);
  for (;;) {
    bool ran = false;
    for (int n = 0; n < block.size; ++n) {
      const int i = block.backwards ? block.size - 1 - n : n;
      if (block.fibers[i].state != State::kReady) continue;
      ran = true;
      block.running = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      folio_switch_stack(&block.scheduler, block.fibers[i].top);
    }
    bool released = Release(0, block.size, State::kAtBlockBarrier);
    for (int warp = 0; warp < block.size; warp += kWarp) {
      const int end = warp + kWarp < block.size ? warp + kWarp : block.size;
      released = Release(warp, end, State::kAtWarpBarrier) || released;
    }
    if (released) continue;
    bool all_done = true;
    for (int i = 0; i < block.size; ++i) all_done &= block.fibers[i].state == State::kDone;
    if (all_done) return;
    if (!ran) {
      std::fprintf(stderr, "emulated kernel: threads wait at different barriers\n");
      std::abort();
    }
  }
}

}  // namespace

void __syncthreads() { Wait(State::kAtBlockBarrier); }
void __syncwarp() { Wait(State::kAtWarpBarrier); }

float __shfl_xor_sync(unsigned, float value, int lane_mask) {
  const int self = block.running;
  const int turn = block.fibers[self].turn;
  block.fibers[self].slots[turn] = value;
  block.fibers[self].turn = 1 - turn;
  __syncwarp();
  const int lane = self % kWarp;
  return block.fibers[self - lane + (lane ^ lane_mask)].slots[turn];
}

// PTX ISA, mma.m16n8k16: lane l is in group g = l / 4 at place t = l % 4. a0 holds A[g][2t, 2t+1],
// a1 A[g+8][2t, 2t+1], a2 A[g][2t+8, 2t+9], a3 A[g+8][2t+8, 2t+9]; b0 B[2t, 2t+1][g], b1
// B[2t+8, 2t+9][g]; c C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1].
void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int self = block.running;
  const int turn = block.fibers[self].turn;
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::copy(std::begin(mine), std::end(mine), block.fibers[self].operands[turn]);
  block.fibers[self].turn = 1 - turn;
  __syncwarp();
  const int lane = self % kWarp;
  const Fiber* warp = &block.fibers[self - lane];
  const auto half = [](uint32_t word, int which) {
    const uint32_t bits = which == 0 ? word << 16 : word & 0xffff0000u;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i < 2 ? 0 : 8);
    const int column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const Fiber& left = warp[row % 8 * 4 + k % 8 / 2];
      const Fiber& right = warp[column * 4 + k % 8 / 2];
      sum += half(left.operands[turn][row / 8 + k / 8 * 2], k % 2) *
             half(right.operands[turn][4 + k / 8], k % 2);
    }
    c[i] += sum;
  }
}

// PTX ISA, movmatrix: lane l gives row l / 4, columns 2 (l % 4) and the next.
uint32_t Transpose8x8(uint32_t word) {
  const int self = block.running;
  const int turn = block.fibers[self].turn;
  block.fibers[self].operands[turn][0] = word;
  block.fibers[self].turn = 1 - turn;
  __syncwarp();
  const int lane = self % kWarp;
  const Fiber* warp = &block.fibers[self - lane];
  const int column = lane / 4;
  const auto at = [&](int row) {
    return warp[row * 4 + column / 2].operands[turn][0] >> (16 * (column % 2)) & 0xffffu;
  };
  return at(lane % 4 * 2) | at(lane % 4 * 2 + 1) << 16;
}

void* EmulatedShared() { return block.shared.data(); }

namespace {
Work* recorded = nullptr;
}  // namespace

Work* RecordInto(Work* work) { return std::exchange(recorded, work); }

void Submit(std::function<void()> work) {
  if (recorded != nullptr) {
    recorded->push_back(std::move(work));
  } else {
    work();
  }
}

void RunGrid(dim3 grid, int block_size, int shared_bytes, const std::function<void()>& thread) {
  if (static_cast<int>(block.fibers.size()) < block_size) block.fibers.resize(block_size);
  block.size = block_size;
  block.thread = &thread;
  // Poisoned: what a kernel reads it must have written.
  gridDim = grid;
  blockDim = {static_cast<unsigned>(block_size), 1, 1};
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        block.shared.assign(shared_bytes, static_cast<char>(0xff));
        block.backwards = !block.backwards;
        RunBlock();
      }
    }
  }
}

}  // namespace folio::cuda
