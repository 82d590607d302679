#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace folio {

// The NUMA nodes whose memory this process may use, as a bit mask of the system's numbers; empty
// where the system does not say.
std::vector<unsigned long> UsableNumaNodes();

// Lets the pages of [memory, memory + num_bytes), which nobody has touched, lie on these nodes in
// turns: every thread then reads with the bandwidth of all nodes, wherever it runs. `memory` is
// aligned to pages. A refusal costs speed only.
bool InterleavePages(std::byte* memory, int64_t num_bytes, const std::vector<unsigned long>& nodes);

// The same over all nodes; where there is one nothing is asked of the system.
void InterleaveOverNodes(std::byte* memory, int64_t num_bytes);

}  // namespace folio
