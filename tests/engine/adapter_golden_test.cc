// Logits under LoRA adapters against models into whose weights PEFT has merged them
// (tests/reference/lora_adapters.py), alone and beside rows of other adapters and of none.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/model/safetensors_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

std::string DirOf(const std::string& name) { return TestData("golden/adapters/" + name); }

std::vector<std::string> Cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestData("golden/adapters"))) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ModelOf(const std::string& name) {
  std::ifstream file(DirOf(name) + "/adapter_config.json");
  return TestData("golden/families/" +
                  nlohmann::json::parse(file)["base_model_name_or_path"].get<std::string>());
}

template <typename T>
std::vector<T> Golden(const std::string& name, const std::string& tensor_name) {
  const auto file = SafetensorsFile::Open(DirOf(name) + "/golden.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  const OwnedTensor tensor = *file->Tensor(tensor_name);
  const auto* values = static_cast<const T*>(tensor.view.data);
  return {values, values + tensor.view.num_elements()};
}

AttentionPlan PlanWith(int adapter) {
  AttentionPlan plan;
  plan.stages.emplace_back();
  plan.adapter = adapter;
  return plan;
}

std::unique_ptr<LoadedModel> Load(const std::string& dir,
                                  const std::vector<std::string>& adapters) {
  ModelOptions options;
  for (const std::string& name : adapters) options.adapters.push_back({name, DirOf(name)});
  return LoadTestModel(dir, options);
}

class AdapterGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Golden, AdapterGolden, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param; });

TEST_P(AdapterGolden, LogitsAreThoseOfMergedWeights) {
  const std::string dir = ModelOf(GetParam());
  if (!TestBackendRuns(dir)) GTEST_SKIP() << "not run by this backend";
  const auto model = Load(dir, {GetParam()});
  const auto tokens = Golden<int32_t>(GetParam(), "tokens");
  const auto expected = Golden<float>(GetParam(), "logits");
  for (const std::vector<int>& pieces : {std::vector<int>{64}, {7, 1, 1, 9}}) {
    EXPECT_LT(MaxAbsDifference(AllLogits(model.get(), PlanWith(0), tokens, pieces), expected),
              3e-4f);
  }
  // The adapter has to matter.
  EXPECT_GT(MaxAbsDifference(AllLogits(model.get(), PlanWith(-1), tokens, {64}), expected), 0.5f);
}

// Steps of an answer look alike, and a backend may repeat what it has recorded of one.
TEST(AdapterRows, OfAnswersAreNotThoseOfAnEarlierStepThatLooksTheSame) {
  const std::vector<std::string> names = {"mistral_all", "mistral_patterns"};
  const auto model = Load(ModelOf(names[0]), names);
  const auto tokens = Golden<int32_t>(names[0], "tokens");
  for (const int adapter : {-1, 0, 1, 0}) {
    AttentionPlan plan = PlanWith(adapter);
    plan.prompt_tokens = 10;
    const std::vector<float> logits = AllLogits(model.get(), plan, tokens, {16});
    if (adapter < 0) continue;
    EXPECT_LT(MaxAbsDifference(logits, Golden<float>(names[adapter], "logits")), 3e-4f);
  }
}

// Steps of one batch with a slice for each adapter of the list, the first tokens of `tokens`;
// logits of each slice.
std::vector<std::vector<float>> Together(LoadedModel* model, const std::vector<int>& adapters,
                                         const std::vector<int32_t>& tokens, int count) {
  std::vector<Stream> streams;
  for (const int adapter : adapters) streams.emplace_back(model, PlanWith(adapter));
  std::vector<std::vector<float>> logits(adapters.size());
  const int vocab = model->config.shape.vocab_size;
  for (int begin = 0; begin < static_cast<int>(tokens.size()); begin += count) {
    const int rows = std::min(count, static_cast<int>(tokens.size()) - begin);
    StepBatch batch;
    std::vector<int32_t> ids;
    for (Stream& stream : streams) {
      batch.slices.push_back(stream.Next(batch.num_rows, rows));
      batch.num_rows += rows;
      ids.insert(ids.end(), tokens.begin() + begin, tokens.begin() + begin + rows);
    }
    std::vector<int> logit_rows(batch.num_rows);
    for (int i = 0; i < batch.num_rows; ++i) logit_rows[i] = i;
    const auto all = model->transformer->Forward(batch, ids, logit_rows);
    for (size_t n = 0; n < streams.size(); ++n) {
      const auto first = all.begin() + static_cast<int64_t>(n) * rows * vocab;
      logits[n].insert(logits[n].end(), first, first + int64_t{rows} * vocab);
      streams[n].Done(rows);
    }
  }
  return logits;
}

// A row's arithmetic does not depend on the rows beside it: on the CPU bit for bit.
TEST(AdapterRows, AreThoseOfTheirSequencesInABatchOfAll) {
  const std::vector<std::string> names = {"mistral_all", "mistral_patterns", "mistral_one_layer"};
  const std::string dir = ModelOf(names[0]);
  const auto model = Load(dir, names);
  const auto plain = Load(dir, {});
  const float limit = OnTestBackend() ? 1e-4f : 0.0f;
  const auto tokens = Golden<int32_t>(names[0], "tokens");
  const std::vector<int> adapters = {1, -1, 0, 0, -1, 2, 1};
  std::map<int, std::vector<float>> alone;
  for (const int adapter : adapters) {
    LoadedModel* const of = adapter < 0 ? plain.get() : model.get();
    alone[adapter] = AllLogits(of, PlanWith(adapter), tokens, {8});
    if (adapter < 0) continue;
    EXPECT_LT(MaxAbsDifference(alone[adapter], Golden<float>(names[adapter], "logits")), 3e-4f);
  }
  for (const int rows : {8, 1}) {
    const auto together = Together(model.get(), adapters, tokens, rows);
    for (size_t n = 0; n < adapters.size(); ++n) {
      const auto& expected = rows == 8 ? alone[adapters[n]]
                                       : AllLogits(adapters[n] < 0 ? plain.get() : model.get(),
                                                   PlanWith(adapters[n]), tokens, {rows});
      EXPECT_LE(MaxAbsDifference(together[n], expected), limit)
          << "adapter " << adapters[n] << " in place " << n << ", rows " << rows;
    }
  }
}

}  // namespace
}  // namespace folio::test
