#include "engine/model/adapter_modules.h"

#include <numeric>
#include <utility>

#include "engine/model/head_order.h"
#include "engine/model/model_tensors.h"

namespace folio {
namespace {

std::vector<int64_t> InOrder(int64_t count) {
  std::vector<int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

class Lister {
 public:
  explicit Lister(const ModelConfig& config)
      : config_(config),
        shape_(config.shape),
        names_(FindFamily(config.architecture)->tensors),
        order_(HeadOrder(shape_.head_dim, config.rope.rotary_dim, config.style.rotary_pairs)) {}

  void Qkv() {
    const char* const separate[] = {names_.q, KeyTensor(config_), names_.v};
    AdapterModule all;
    int64_t first_row = 0;
    for (int which = 0; which < 3; ++which) {
      std::vector<int64_t> rows = QkvRows(shape_, config_.style, order_, which);
      const auto count = static_cast<int64_t>(rows.size());
      if (names_.qkv == nullptr) {
        Add(separate[which], LayerProduct::kQkv, count, std::move(rows), first_row);
      } else {
        all.rows.insert(all.rows.end(), rows.begin(), rows.end());
      }
      first_row += count;
    }
    if (names_.qkv != nullptr) Add(names_.qkv, LayerProduct::kQkv, first_row, std::move(all.rows));
  }

  void Output() {
    AdapterModule* const added =
        Add(names_.output, LayerProduct::kOutput, shape_.hidden_size, InOrder(shape_.hidden_size));
    if (order_.empty()) return;
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      for (const int e : order_) added->columns.push_back(head * shape_.head_dim + e);
    }
  }

  void Mlp() {
    const int64_t ffn = shape_.intermediate_size;
    const int64_t up = config_.style.fused_gate ? 2 * ffn : ffn;
    if (names_.gate != nullptr) Add(names_.gate, LayerProduct::kUp, ffn, InOrder(ffn));
    Add(names_.up, LayerProduct::kUp, up, InOrder(up), names_.gate != nullptr ? ffn : 0);
    Add(names_.down, LayerProduct::kDown, shape_.hidden_size, InOrder(shape_.hidden_size));
  }

  std::vector<AdapterModule> modules;

 private:
  AdapterModule* Add(const char* name, LayerProduct product, int64_t outputs,
                     std::vector<int64_t> rows, int64_t first_row = 0) {
    AdapterModule& module = modules.emplace_back();
    module.name = name;
    module.product = product;
    module.inputs = ShapeOf(product, config_).inputs;
    module.outputs = outputs;
    module.first_row = first_row;
    module.rows = std::move(rows);
    return &module;
  }

  const ModelConfig& config_;
  const ModelShape& shape_;
  const TensorNames& names_;
  const std::vector<int> order_;
};

}  // namespace

ProductShape ShapeOf(LayerProduct product, const ModelConfig& config) {
  const ModelShape& shape = config.shape;
  const int64_t hidden = shape.hidden_size;
  const int64_t ffn = shape.intermediate_size;
  const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim;
  switch (product) {
    case LayerProduct::kQkv:
      return {q_size + 2 * int64_t{shape.num_kv_heads} * shape.head_dim, hidden};
    case LayerProduct::kOutput:
      return {hidden, q_size};
    case LayerProduct::kUp:
      return {config.style.gated() ? 2 * ffn : ffn, hidden};
    case LayerProduct::kDown:
      return {hidden, ffn};
  }
  return {};
}

std::vector<AdapterModule> AdapterModules(const ModelConfig& config) {
  Lister lister(config);
  lister.Qkv();
  lister.Output();
  if (config.shape.num_experts == 0) lister.Mlp();
  return std::move(lister.modules);
}

}  // namespace folio
