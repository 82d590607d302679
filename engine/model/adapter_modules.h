#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace folio {

// The products of a layer that an adapter may change, as Weights has them.
enum class LayerProduct : uint8_t { kQkv, kOutput, kUp, kDown };
inline constexpr int kNumLayerProducts = 4;

// A linear module of a checkpoint's layers, and where its rows are in the product it is part of.
struct AdapterModule {
  std::string name;  // inside a layer: "self_attn.q_proj"
  LayerProduct product = LayerProduct::kQkv;
  int64_t inputs = 0;
  int64_t outputs = 0;
  // Row first_row + i of the product is row rows[i] of the module.
  int64_t first_row = 0;
  std::vector<int64_t> rows;
  // Input i of the product is input columns[i] of the module; empty: the same order.
  std::vector<int64_t> columns;
};

// Those of each layer of a model. Experts and their router are not among them.
std::vector<AdapterModule> AdapterModules(const ModelConfig& config);

struct ProductShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
};
ProductShape ShapeOf(LayerProduct product, const ModelConfig& config);

}  // namespace folio
