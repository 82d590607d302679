#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/cuda/device_types.h"
#include "engine/types/sampling.h"

namespace folio::cuda {

// What is wanted of the logits of a step, as the kernel wants it: tasks, the bits of tokens that
// some of them have seen or may draw, and the changes of logits that some of them want.
class SampleTasks {
 public:
  void Set(const std::vector<LogitsTask>& tasks);
  // Tells the tasks where words() and edits() will lie on the device.
  void SetBase(const uint32_t* words, const LogitEdit* edits);

  const std::vector<SampleTask>& tasks() const { return tasks_; }
  const std::vector<uint32_t>& words() const { return words_; }
  const std::vector<LogitEdit>& edits() const { return edits_; }

 private:
  std::vector<SampleTask> tasks_;
  // Where the bits of a task lie in words_; -1: it needs none.
  struct Offsets {
    int64_t seen = -1;
    int64_t allowed = -1;
  };
  int64_t AddWords(const std::vector<uint32_t>& words);

  std::vector<Offsets> offsets_;  // one per task
  std::vector<uint32_t> words_;
  std::vector<LogitEdit> edits_;  // of one task after the other
};

}  // namespace folio::cuda
