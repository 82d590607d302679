#pragma once

#include <string>
#include <vector>

#include "tests/engine/test_model.h"

namespace folio::test {

// Logits for the tokens of the golden.safetensors that lies beside, or in, a model's path.
std::vector<float> LogitsOfGolden(LoadedModel* model, const std::string& model_path);

// Between these and the file's, the largest difference.
float GoldenDifference(LoadedModel* model, const std::string& model_path);

// Root mean square of these differences, in parts of that of the file's logits.
double GoldenDeviation(LoadedModel* model, const std::string& model_path);

}  // namespace folio::test
