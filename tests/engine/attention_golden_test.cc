// Every legal pair of strategy and position scheme against float64 numpy (tests/reference says
// how).
#include <algorithm>
#include <fstream>

#include "engine/attention/attention_registry.h"
#include "engine/model/safetensors_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_model.h"
#include "tests/engine/worst_error.h"

namespace folio::test {
namespace {

using nlohmann::json;

const json& About() {
  static const json about = json::parse(std::ifstream(TestData("golden/attention/cases.json")));
  return about;
}

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.Tensor(name);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  const auto* data = static_cast<const T*>(tensor->view.data);
  return {data, data + tensor->view.num_elements()};
}

AttentionSpec SpecOf(const json& test) {
  AttentionSpec spec;
  spec.strategy.name = test["strategy"];
  for (const auto& [name, value] : test["params"].items()) {
    const ParamValue given =
        value.is_string() ? ParamValue(value.get<std::string>()) : ParamValue(value.get<int64_t>());
    spec.strategy.params.emplace_back(name, given);
  }
  spec.position.name = test["position"];
  for (const auto& [name, value] : test["position_params"].items()) {
    spec.position.params.emplace_back(name, value.get<double>());
  }
  return spec;
}

// The model as if it had been trained on the short length of the cases.
AttentionModel ModelOf(const LoadedModel& loaded) {
  AttentionModel model = loaded.attention;
  const int length = About()["trained_length"];
  model.limits.trained_length = length;
  model.rope.trained_length = model.rope.original_length = length;
  return model;
}

class ReferenceAttention : public testing::TestWithParam<int> {};

TEST_P(ReferenceAttention, IsEqualInPrefillAndDecode) {
  const json& test = About()["cases"][GetParam()];
  const std::string name = test["name"];
  for (const std::string path : test["models"]) {
    if (!TestBackendRuns(TestData("golden/" + path))) continue;
    const std::string model_name = path.substr(path.find('/') + 1);
    auto file = SafetensorsFile::Open(TestData("golden/attention/" + model_name + ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    const auto tokens = Values<int32_t>(*file, name + "/tokens");
    const auto expected = Values<float>(*file, name + "/logits");
    const auto rows = Values<int32_t>(*file, "rows");
    auto loaded = LoadTestModel(TestData("golden/" + path));
    const AttentionModel model = ModelOf(*loaded);
    const PositionRequest request{static_cast<int64_t>(tokens.size()), false};
    const auto spec = ResolveAttention(SpecOf(test), {}, model, request);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const AttentionPlan plan = PlanFor(*spec, model, About()["prompt_tokens"].get<int64_t>());
    float worst = 0;
    for (const std::vector<int>& pieces : {std::vector<int>{512}, {1}, {70, 13, 1, 30}}) {
      // In the last case the answer's rows come one by one too.
      if (!RunsSlowCases() && pieces[0] != 70) continue;
      const std::vector<float> all = AllLogits(loaded.get(), plan, tokens, pieces);
      const size_t vocab = all.size() / tokens.size();
      std::vector<float> kept;
      for (int32_t row : rows) {
        kept.insert(kept.end(), all.begin() + row * vocab, all.begin() + (row + 1) * vocab);
      }
      const float error = MaxAbsDifference(kept, expected);
      EXPECT_LE(error, 1e-4f) << model_name << ", pieces of " << pieces[0];
      worst = std::max(worst, error);
    }
    RecordWorstError(path, test["strategy"], worst);
    if (!RunsSlowCases()) break;
  }
}

std::string CaseName(const testing::TestParamInfo<int>& info) {
  const json& test = About()["cases"][info.param];
  std::string name = test["models"][0].get<std::string>() + "_" + test["name"].get<std::string>();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Golden, ReferenceAttention,
                         testing::Range(0, static_cast<int>(About()["cases"].size())), CaseName);

}  // namespace
}  // namespace folio::test
