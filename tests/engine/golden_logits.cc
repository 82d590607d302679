#include "tests/engine/golden_logits.h"

#include <cmath>
#include <filesystem>

#include "engine/model/safetensors_file.h"
#include "gtest/gtest.h"

namespace folio::test {
namespace {

SafetensorsFile GoldenOf(const std::string& model_path) {
  const std::filesystem::path path(model_path);
  const auto dir = std::filesystem::is_directory(path) ? path : path.parent_path();
  auto file = SafetensorsFile::Open((dir / "golden.safetensors").string());
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const OwnedTensor tensor = *file.Tensor(name);
  const auto* values = static_cast<const T*>(tensor.view.data);
  return {values, values + tensor.view.num_elements()};
}

}  // namespace

std::vector<float> LogitsOfGolden(LoadedModel* model, const std::string& model_path) {
  AttentionPlan plan;
  plan.stages.emplace_back();
  return AllLogits(model, plan, Values<int32_t>(GoldenOf(model_path), "tokens"), {64});
}

float GoldenDifference(LoadedModel* model, const std::string& model_path) {
  return MaxAbsDifference(LogitsOfGolden(model, model_path),
                          Values<float>(GoldenOf(model_path), "logits"));
}

double GoldenDeviation(LoadedModel* model, const std::string& model_path) {
  const std::vector<float> logits = LogitsOfGolden(model, model_path);
  const std::vector<float> expected = Values<float>(GoldenOf(model_path), "logits");
  double differences = 0;
  double squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    differences += std::pow(double{logits[i]} - expected[i], 2);
    squares += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(differences / squares);
}

}  // namespace folio::test
