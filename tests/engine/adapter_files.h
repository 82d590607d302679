#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace folio::test {

// An adapter as PEFT saves it, of random numbers. What is wrong with it is up to the test.
struct AdapterFiles {
  // Of q_proj and v_proj of all layers of the model.
  AdapterFiles(const ModelConfig& model, int rank, uint64_t seed);

  // Fields of adapter_config.json as JSON text, by key.
  std::map<std::string, std::string> config;
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor> tensors;  // fp32, by name

  void Write(const std::string& dir) const;
};

}  // namespace folio::test
