#include "engine/runtime/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/kv/kv_store.h"
#include "engine/model/model_tensors.h"
#include "engine/model/transformer.h"

namespace folio {
namespace {

// Of what is left for the KV cache, where nothing else is said: on the host others live too; on a
// device libraries and fragments take a little.
constexpr double kHostShare = 0.7;
constexpr double kDeviceShare = 0.95;

std::string Size(int64_t bytes) {
  constexpr double kMib = 1 << 20;
  const auto mib = static_cast<double>(bytes) / kMib;
  return mib < 1024 ? absl::StrFormat("%.2f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

int64_t WeightBytes(const ModelConfig& config, const WeightPrecision& precision) {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : ModelTensors(config)) {
    if (tensor.shape.size() == 1) {
      bytes += tensor.shape[0] * DTypeBytes(DType::kF32);
      continue;
    }
    const bool as_given =
        tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kRouter;
    const WeightFormat format = as_given                           ? WeightFormat{}
                                : tensor.role == TensorRole::kHead ? precision.head
                                                                   : precision.layers;
    bytes += precision.MatrixBytes(format, tensor.shape[0], tensor.shape[1]);
  }
  return bytes;
}

}  // namespace

std::string MemoryPlan::Sum() const {
  return absl::StrCat(
      "weights ", Size(weights), adapters > 0 ? absl::StrCat(" + adapters ", Size(adapters)) : "",
      " + activations ", Size(activations), " + workspace ", Size(workspace), " + KV pages ",
      Size(kv_pages), " + chunk summaries ", Size(summaries), " = ", Size(total()));
}

std::string MemoryPlan::ToString() const {
  std::string text = absl::StrCat(Sum(), " of ", Size(available));
  if (host_pages > 0) absl::StrAppend(&text, "; KV pages on the host ", Size(host_pages));
  return text;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const KvGeometry& geometry,
                                      const MemoryPlanInputs& inputs) {
  MemoryPlan plan;
  plan.available = inputs.available;
  plan.weights = WeightBytes(config, inputs.weights);
  plan.adapters = inputs.adapters;
  plan.activations =
      Transformer::WorkspaceBytes(config.shape, config.style, inputs.step_rows, inputs.logit_rows);
  plan.workspace = inputs.workspace;
  const int64_t left = plan.available - plan.total();
  plan.host_pages = inputs.host_bytes;
  if (plan.host_pages > inputs.host.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pages on the host ", Size(plan.host_pages),
                                                     " > ", Size(inputs.host.bytes), " of ",
                                                     inputs.host.what, "; lower --kv-host-bytes"));
  }
  // Summaries lie beside the pages only where both pools are taken whole; they stand for all pages.
  const auto with_summaries = [&](int64_t kv_bytes) {
    if (!inputs.commits_at_once) return kv_bytes;
    const int64_t pages = plan.host_pages > 0 ? plan.host_pages : kv_bytes;
    return kv_bytes + KvStore::SummaryPoolBytes(geometry, pages, true);
  };
  plan.kv_pages = inputs.kv_bytes;
  if (plan.kv_pages == 0) {
    const double share = inputs.commits_at_once ? kDeviceShare : kHostShare;
    const double usable = std::max<double>(0, static_cast<double>(left) * share);
    if (plan.host_pages > 0) {
      plan.kv_pages = std::max<int64_t>(0, static_cast<int64_t>(usable) - with_summaries(0));
    } else if (left > 0) {
      // Summaries grow with the pages, all but in proportion.
      const double pages = static_cast<double>(left) / static_cast<double>(with_summaries(left));
      plan.kv_pages = static_cast<int64_t>(usable * pages);
    }
  }
  plan.summaries = with_summaries(plan.kv_pages) - plan.kv_pages;
  // A host's budget may count on what others give back, not on more than there can be.
  const bool chosen = inputs.kv_bytes > 0 && !inputs.commits_at_once;
  const MemoryBound bound =
      chosen ? inputs.limit : MemoryBound{plan.available, "what is available"};
  if (plan.total() <= bound.bytes && plan.kv_pages >= geometry.frame_bytes()) return plan;
  const bool kv_can_shrink =
      inputs.kv_bytes > 0 &&
      bound.bytes - (plan.total() - plan.kv_pages - plan.summaries) > geometry.frame_bytes();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the model and its cache do not fit: ", plan.Sum(), " > ", Size(bound.bytes), " of ",
      bound.what, "; ",
      kv_can_shrink
          ? absl::StrCat("lower --kv-bytes", plan.host_pages > 0 ? " or --kv-host-bytes" : "",
                         " by ", Size(plan.total() - bound.bytes))
          : "take a smaller model, lower --step-tokens, or use a machine with more memory"));
}

}  // namespace folio
