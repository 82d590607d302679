#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/base/task_threads.h"

namespace folio {

// Does work(n) for every n below `count`, in this thread and up to `num_helpers` tasks of `helpers`
// that have time. Returns when none is under way, with the first error; after one no other is
// begun. What `work` throws is an error (StatusOf). Throws std::bad_alloc before anything is begun.
absl::Status ForAll(int count, int num_helpers, TaskThreads* helpers,
                    absl::FunctionRef<absl::Status(int)> work);

}  // namespace folio
