#pragma once

#include "engine/kv/kv_store.h"
#include "engine/types/attention_plan.h"

namespace folio {

// Tokens [first_position, first_position + num_rows) of a sequence, for which `kv` has room, as the
// first rows of a step. Borrows plan and page table.
inline SequenceSlice MakeSlice(const AttentionPlan& plan, const SequenceKv& kv,
                               int64_t first_position, int num_rows) {
  SequenceSlice slice;
  slice.num_rows = num_rows;
  slice.first_position = first_position;
  slice.plan = &plan;
  slice.first_page = kv.first_page;
  slice.pages = kv.pages;
  slice.sinks = kv.sinks;
  slice.summaries = kv.summaries;
  slice.pending_queries = kv.pending_queries;
  return slice;
}

}  // namespace folio
