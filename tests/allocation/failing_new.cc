#include "tests/allocation/failing_new.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace folio::test {
namespace {

constexpr size_t kNameBytes = 16;  // pthread_getname_np

std::atomic<bool> counting{false};
std::atomic<int64_t> num_counted{0};
char thread_name[kNameBytes];
int64_t first_failure = 0;
int64_t num_failures = 0;

bool MustFail() {
  if (!counting.load(std::memory_order_acquire)) return false;
  char name[kNameBytes] = {};
  if (pthread_getname_np(pthread_self(), name, sizeof(name)) != 0) return false;
  if (std::strcmp(name, thread_name) != 0) return false;
  const int64_t number = num_counted.fetch_add(1) + 1;
  return number >= first_failure && number - first_failure < num_failures;
}

void* Allocate(size_t bytes, size_t alignment) noexcept {
  if (MustFail()) return nullptr;
  const size_t whole = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole);
}

void* AllocateOrThrow(size_t bytes, size_t alignment) {
  void* const memory = Allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void FailAllocations(const char* thread, int64_t first, int64_t count) {
  std::strncpy(thread_name, thread, sizeof(thread_name) - 1);
  first_failure = first;
  num_failures = count;
  num_counted.store(0);
  counting.store(true, std::memory_order_release);
}

int64_t StopFailing() {
  counting.store(false);
  return num_counted.load();
}

}  // namespace folio::test

using folio::test::Allocate;
using folio::test::AllocateOrThrow;

constexpr size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

void* operator new(size_t bytes) { return AllocateOrThrow(bytes, kUsual); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes, kUsual); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, kUsual); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, kUsual);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
