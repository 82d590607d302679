#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/tensor/tensor_view.h"

namespace folio {

// What a tensor of a checkpoint was, without its numbers.
struct TensorDigest {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::array<uint64_t, 2> hash = {};  // XXH3-128 of its bytes
};

// By name.
using TensorDigestMap = std::map<std::string, TensorDigest>;

}  // namespace folio
