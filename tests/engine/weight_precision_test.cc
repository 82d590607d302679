// Models whose weights are kept in other numbers than the checkpoint's.
#include "engine/model/weight_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "engine/attention/attention_registry.h"
#include "engine/runtime/memory_plan.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using testing::HasSubstr;

TEST(ParseWeightPrecision, Names) {
  for (const DType given : {DType::kF32, DType::kF16, DType::kBf16}) {
    EXPECT_EQ(ParseWeightPrecision("auto", 0, given)->name(), DTypeName(given));
    EXPECT_EQ(ParseWeightPrecision("bf16", 0, given)->name(), "bf16");
    EXPECT_EQ(ParseWeightPrecision("fp32", 0, given)->name(), "fp32");
    EXPECT_EQ(ParseWeightPrecision("int8", 0, given)->name(), "int8/128");
    EXPECT_EQ(ParseWeightPrecision("int4", 0, given)->name(), "int4/32");
    EXPECT_EQ(ParseWeightPrecision("int4", 128, given)->name(), "int4/128");
    EXPECT_EQ(ParseWeightPrecision("int4", 64, given)->dtype, given);
  }
  const WeightPrecision int4 = *ParseWeightPrecision("int4", 64, DType::kBf16);
  EXPECT_EQ(int4.head.codec, WeightFormat::Codec::kInt8);
  EXPECT_EQ(int4.MatrixBytes(int4.layers, 10, 100), 10 * (2 * (32 + 2) + 2));
  EXPECT_EQ(int4.MatrixBytes(int4.head, 10, 128), 10 * (2 * (64 + 2) + 2));
  EXPECT_EQ(int4.MatrixBytes({}, 10, 100), 2000);
}

TEST(ParseWeightPrecision, OfAQuantisedCheckpoint) {
  using Codec = WeightFormat::Codec;
  const auto name = [](const char* asked, int group, WeightFormat nearest) {
    return ParseWeightPrecision(asked, group, DType::kBf16, nearest)->name();
  };
  EXPECT_EQ(name("auto", 0, {Codec::kInt8, 32}), "int8/32");
  EXPECT_EQ(name("auto", 64, {Codec::kInt8, 32}), "int8/64");
  EXPECT_EQ(name("auto", 0, {Codec::kInt4, 128}), "int4/128");
  EXPECT_EQ(name("int4", 0, {Codec::kInt4, 128}), "int4/128");
  EXPECT_EQ(name("int8", 0, {Codec::kInt4, 32}), "int8/128");
  EXPECT_EQ(name("bf16", 0, {Codec::kInt4, 32}), "bf16");
}

TEST(ParseWeightPrecision, WhatDoesNotExistIsRefused) {
  const auto dtype = ParseWeightPrecision("int2", 0, DType::kF32).status();
  EXPECT_EQ(dtype.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(dtype.message(), HasSubstr("int2"));
  const auto group = ParseWeightPrecision("int4", 48, DType::kF32).status();
  EXPECT_EQ(group.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(group.message(), HasSubstr("48"));
}

class Precision : public testing::Test {
 protected:
  struct Loaded {
    EngineInfo info;
    std::vector<float> logits;  // of the text's first tokens, [256][vocab]
  };
  static Loaded Load(const std::string& dtype, int group = 0) {
    EngineOptions options;
    options.model_dir = test::TestData("../models/folio-tiny");
    options.kv_dtype = "fp32";
    options.kv_bytes = int64_t{64} << 20;
    options.num_threads = 2;
    options.weight_dtype = dtype;
    options.weight_group = group;
    auto model = LoadModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    std::ifstream file(test::TestData("../models/texts/ezekiel.txt"));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::vector<int32_t> tokens = *(*model)->tokenizer->Encode(text.substr(0, 4000));
    tokens.resize(256);
    const AttentionPlan plan =
        PlanFor(*ResolveAttention({{"full", {}}, {}}, {}, (*model)->attention, {}),
                (*model)->attention, std::ssize(tokens));
    return {(*model)->info, test::AllLogits(model->get(), plan, tokens, {64})};
  }

  // Mean KL(p || q) of the distributions that logits stand for.
  static double Divergence(const Loaded& p, const Loaded& q) {
    const int vocab = p.info.shape.vocab_size;
    const size_t rows = p.logits.size() / vocab;
    const auto log_sum = [&](const float* x) {
      double sum = 0;
      for (int i = 0; i < vocab; ++i) sum += std::exp(double{x[i]});
      return std::log(sum);
    };
    double total = 0;
    for (size_t row = 0; row < rows; ++row) {
      const float *a = &p.logits[row * vocab], *b = &q.logits[row * vocab];
      const double a_sum = log_sum(a), b_sum = log_sum(b);
      for (int i = 0; i < vocab; ++i) {
        total += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum));
      }
    }
    return total / static_cast<double>(rows);
  }
};

TEST_F(Precision, DistributionsStayNearThoseOfTheCheckpoint) {
  const Loaded given = Load("fp32");
  struct Case {
    const char* dtype;
    int group;
    double least, most;  // mean KL
    double most_bytes;   // of those of fp32
  };
  // Above `least`: it was not the same model.
  for (const Case& c : {Case{"bf16", 0, 1e-9, 1e-4, 0.51}, Case{"int8", 32, 1e-6, 1e-3, 0.46},
                        Case{"int8", 128, 1e-6, 2e-3, 0.45}, Case{"int4", 32, 1e-3, 0.06, 0.37},
                        Case{"int4", 128, 1e-3, 0.12, 0.36}}) {
    const Loaded other = Load(c.dtype, c.group);
    const double divergence = Divergence(given, other);
    EXPECT_GT(divergence, c.least) << other.info.weight_dtype;
    EXPECT_LT(divergence, c.most) << other.info.weight_dtype;
    EXPECT_LT(static_cast<double>(other.info.weight_bytes),
              c.most_bytes * static_cast<double>(given.info.weight_bytes))
        << other.info.weight_dtype;
  }
}

// An embedding, a head of its own, and layers, each in its own numbers.
TEST_F(Precision, ThePlanCountsWhatIsKept) {
  for (const char* dtype : {"bf16", "int8", "int4"}) {
    for (const int group : {32, 128}) {
      EngineOptions options;
      options.model_dir = "synthetic:tiny";
      options.kv_bytes = int64_t{8} << 20;
      options.weight_dtype = dtype;
      options.weight_group = group;
      const auto model = LoadModel(options);
      ASSERT_TRUE(model.ok()) << model.status();
      MemoryPlanInputs inputs;
      inputs.available = int64_t{1} << 40;
      inputs.step_rows = inputs.logit_rows = 64;
      inputs.weights = (*model)->precision;
      const auto plan = PlanMemory((*model)->config, (*model)->store->geometry(), inputs);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto kept = static_cast<double>((*model)->info.weight_bytes);
      EXPECT_NEAR(static_cast<double>(plan->weights) / kept, 1, 0.01)
          << (*model)->info.weight_dtype;
    }
  }
}

TEST_F(Precision, ASyntheticModelHasNoFp32) {
  EngineOptions options;
  options.model_dir = "synthetic:tiny";
  options.weight_dtype = "fp32";
  const absl::Status status = LoadModel(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("--weight-dtype"));
}

TEST_F(Precision, AutoIsAsTheCheckpointHasThem) {
  const Loaded given = Load("auto");
  EXPECT_EQ(given.info.weight_dtype, "fp32");
  EXPECT_EQ(given.logits, Load("fp32").logits);
}

}  // namespace
}  // namespace folio
