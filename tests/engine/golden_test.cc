// Logits against files that Hugging Face transformers and a float64 numpy program wrote
// (tests/reference says how).
#include <filesystem>
#include <fstream>

#include "engine/model/safetensors_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};

Golden ReadGolden(const std::string& dir) {
  auto file = SafetensorsFile::Open(dir + "/golden.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  const TensorView tokens = *file->Tensor("tokens");
  const TensorView logits = *file->Tensor("logits");
  const auto* ids = static_cast<const int32_t*>(tokens.data);
  const auto* values = static_cast<const float*>(logits.data);
  return {{ids, ids + tokens.num_elements()}, {values, values + logits.num_elements()}};
}

std::vector<std::string> Cases(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestData(folder))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

AttentionPlan FullPlan() {
  AttentionPlan plan;
  plan.stages.emplace_back();
  return plan;
}

// Written out here, not taken from the registry: the golden cases go beyond what requests may ask for.
AttentionPlan PlanOf(const nlohmann::json& params) {
  AttentionPlan plan = FullPlan();
  using Stage = AttentionStage;
  if (params["strategy"] == "lm_infinite") {
    plan.stages[0].band_end = params["W"];
    plan.stages.push_back({.keys = Stage::Keys::kSinks,
                           .distance = Stage::Distance::kPinned,
                           .band_begin = params["W"],
                           .pinned_distance = params["D"]});
    plan.retention = {params["W"], params["G"]};
  } else if (params["strategy"] == "long_heads") {
    plan.stages[0].rows_end = params["S"];
    plan.stages.push_back({.keys = Stage::Keys::kChunks,
                           .distance = Stage::Distance::kCompacted,
                           .rows_begin = params["S"]});
    plan.selection = {params["w"], static_cast<int>(params["K"]) - 3};
  }
  return plan;
}

class TransformersLogits : public testing::TestWithParam<std::string> {};

TEST_P(TransformersLogits, AreEqual) {
  const std::string dir = TestData("golden/llama/" + GetParam());
  const Golden golden = ReadGolden(dir);
  const bool half = GetParam() == "bf16" || GetParam() == "fp16";
  auto model = LoadTestModel(dir, {.kv_dtype = "fp32"});
  const float limit = half ? 2e-2f : 1e-4f;
  for (const std::vector<int>& pieces : {std::vector<int>{512}, {1}, {40, 1, 7}}) {
    const std::vector<float> logits = AllLogits(model.get(), FullPlan(), golden.tokens, pieces);
    EXPECT_LE(MaxAbsDifference(logits, golden.logits), limit) << "pieces of " << pieces[0];
  }
}

// A cache in bf16 rounds keys and values to 8 bits; on these models, whose random weights are larger than a
// trained model's, that moves logits of size 7 by up to 0.1.
TEST_P(TransformersLogits, AreCloseWithACacheInBf16) {
  const std::string dir = TestData("golden/llama/" + GetParam());
  const Golden golden = ReadGolden(dir);
  auto model = LoadTestModel(dir, {.kv_dtype = "bf16"});
  const std::vector<float> logits = AllLogits(model.get(), FullPlan(), golden.tokens, {512});
  EXPECT_LE(MaxAbsDifference(logits, golden.logits), 0.2f);
}

INSTANTIATE_TEST_SUITE_P(Golden, TransformersLogits, testing::ValuesIn(Cases("golden/llama")),
                         [](const auto& info) { return info.param; });

class ReferenceStrategies : public testing::TestWithParam<std::string> {};

TEST_P(ReferenceStrategies, AreEqualInPrefillAndDecode) {
  const std::string dir = TestData("golden/strategies/" + GetParam());
  const Golden golden = ReadGolden(dir);
  const auto params = nlohmann::json::parse(std::ifstream(dir + "/params.json"));
  auto model = LoadTestModel(TestData("golden/" + params["model"].get<std::string>()));
  const AttentionPlan plan = PlanOf(params);
  for (const std::vector<int>& pieces : {std::vector<int>{512}, {1}, {100, 13, 1, 1, 50}}) {
    const std::vector<float> logits = AllLogits(model.get(), plan, golden.tokens, pieces);
    EXPECT_LE(MaxAbsDifference(logits, golden.logits), 1e-4f) << "pieces of " << pieces[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ReferenceStrategies, testing::ValuesIn(Cases("golden/strategies")),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace folio::test
