// The verbs outside attention of the backend under test (CUDA, or an instruction set of the CPU)
// against fp32 arithmetic on the CPU, on random inputs; outputs are poisoned before each run.
#include <bit>
#include <cmath>
#include <set>

#include "engine/base/half.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

uint16_t ToFp16(float value) {
  // Scaled by 2^-112, the exponent has fp16's bias.
  const uint32_t bits = std::bit_cast<uint32_t>(std::abs(value) * 0x1p-112f);
  const uint32_t magnitude = (bits + 0xfffu + (bits >> 13 & 1u)) >> 13;
  return static_cast<uint16_t>(magnitude | (value < 0 ? 0x8000u : 0u));
}

class VerbParity : public testing::Test {
 protected:
  VerbParity() : reference_(ReferenceBackend()), tested_(NewTestBackend()) {
    // A step needs a cache to be set up, if only a small one.
    const AttentionShape shape;
    for (Backend* backend : {reference_.get(), tested_.get()}) {
      stores_.push_back(*KvStore::Create(shape.geometry(), 1 << 20, backend->memory()));
      AttentionSetup setup;
      setup.geometry = shape.geometry();
      setup.pages = stores_.back()->page_memory();
      setup.frames = stores_.back()->frame_memory();
      setup.summaries = stores_.back()->summary_memory();
      setup.rotary.theta.assign(shape.head_dim / 2, 0.1f);
      setup.max_step_rows = setup.max_logit_rows = 64;
      EXPECT_TRUE(backend->SetupAttention(setup).ok());
    }
  }

  // Runs `work` on both backends in a step of `batch` and compares what it leaves in `count`
  // floats.
  template <typename F>
  void Compare(const StepBatch& batch, int64_t count, double limit, F work) {
    std::vector<float> results[2];
    std::vector<Sample> samples;
    int n = 0;
    for (Backend* backend : {reference_.get(), tested_.get()}) {
      BufferOf<float> out = Poisoned(backend, count);
      backend->RunStep(
          batch, [&](const StepBatch& step) { work(backend, step, out.data()); }, &samples);
      ASSERT_TRUE(backend->status().ok()) << backend->status();
      results[n++] = Download(backend, out);
    }
    EXPECT_LE(RelativeError(results[1], results[0]), limit);
  }

  std::vector<float> Random(int64_t count, float scale = 1.0f) {
    return RandomFloats(count, &random_, scale);
  }

  // The same matrix, packed by both.
  struct Matrix {
    std::unique_ptr<PackedMatrix> packed[2];
    const PackedMatrix& of(bool tested) const { return *packed[tested ? 1 : 0]; }
  };
  Matrix Pack(DType dtype, int64_t rows, int64_t cols) {
    const std::vector<float> values = Random(rows * cols, 0.1f);
    std::vector<uint16_t> halves;
    for (float value : values) {
      halves.push_back(dtype == DType::kBf16 ? FloatToBf16(value) : ToFp16(value));
    }
    TensorView view;
    view.data = dtype == DType::kF32 ? static_cast<const void*>(values.data()) : halves.data();
    view.dtype = dtype;
    view.rank = 2;
    view.shape[0] = rows;
    view.shape[1] = cols;
    Matrix matrix;
    matrix.packed[0] = *reference_->Pack(std::span(&view, 1), {});
    matrix.packed[1] = *tested_->Pack(std::span(&view, 1), {});
    return matrix;
  }
  bool IsTested(const Backend* backend) const { return backend == tested_.get(); }

  SaysTestSeed seed_;
  std::mt19937_64 random_{TestSeed()};
  std::unique_ptr<Backend> reference_;
  std::unique_ptr<Backend> tested_;
  std::vector<std::unique_ptr<KvStore>> stores_;
};

TEST_F(VerbParity, Norms) {
  for (const int width : {32, 100, 4096}) {
    for (const int rows : {1, 5, 17}) {
      const std::vector<float> x = Random(rows * width, 3.0f);
      const std::vector<float> weight = Random(width);
      const std::vector<float> bias = Random(width);
      Compare({}, rows * width, 1e-5, [&](Backend* backend, const StepBatch&, float* out) {
        const BufferOf<float> on_x = Upload(backend, x);
        const BufferOf<float> on_weight = Upload(backend, weight);
        backend->RmsNorm(on_x.data(), on_weight, 1e-5, rows, out);
      });
      Compare({}, rows * width, 1e-5, [&](Backend* backend, const StepBatch&, float* out) {
        const BufferOf<float> on_x = Upload(backend, x);
        const BufferOf<float> on_weight = Upload(backend, weight);
        const BufferOf<float> on_bias = Upload(backend, bias);
        backend->LayerNorm(on_x.data(), on_weight, on_bias, 1e-5, rows, out);
      });
    }
  }
}

TEST_F(VerbParity, NormsOfHeads) {
  for (const int width : {8, 80, 256}) {
    for (const int rows : {1, 5}) {
      const int num_heads = 3;
      const int stride = num_heads * width + 13;
      const std::vector<float> x = Random(rows * stride, 3.0f);
      const std::vector<float> weight = Random(width);
      Compare({}, rows * stride, 1e-5, [&](Backend* backend, const StepBatch&, float* out) {
        const BufferOf<float> on_weight = Upload(backend, weight);
        Write(backend, x, out);
        backend->NormHeads(on_weight, 1e-5, rows, num_heads, stride, out);
      });
    }
  }
}

TEST_F(VerbParity, Activations) {
  const int width = 96;
  for (const int rows : {1, 7}) {
    const std::vector<float> x = Random(rows * 2 * width, 2.0f);
    Compare({}, rows * width, 1e-5, [&](Backend* backend, const StepBatch&, float* out) {
      const BufferOf<float> on_x = Upload(backend, x);
      backend->SwiGlu(on_x.data(), rows, width, out);
    });
    for (const auto form : {Backend::GeluForm::kErf, Backend::GeluForm::kTanh}) {
      Compare({}, rows * width, 1e-5, [&](Backend* backend, const StepBatch&, float* out) {
        Write(backend, {x.begin(), x.begin() + rows * width}, out);
        backend->Gelu(form, rows, width, out);
      });
    }
  }
}

TEST_F(VerbParity, Products) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const auto& [outputs, inputs] :
         {std::pair<int, int>{64, 32}, {33, 264}, {300, 1032}, {7, 20}}) {
      const Matrix matrix = Pack(dtype, outputs, inputs);
      const std::vector<float> bias = Random(outputs);
      for (const int rows : {1, 2, 3, 4, 5, 19}) {
        for (const bool add : {false, true}) {
          const std::vector<float> x = Random(rows * inputs);
          const std::vector<float> before = Random(rows * outputs);
          SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " [" << outputs << ", " << inputs
                                          << "] x " << rows << (add ? " added" : ""));
          const double limit = dtype == DType::kF32 ? 1e-5 : 1e-2;
          Compare({}, rows * outputs, limit, [&](Backend* backend, const StepBatch&, float* out) {
            const BufferOf<float> on_x = Upload(backend, x);
            const BufferOf<float> on_bias = add ? BufferOf<float>() : Upload(backend, bias);
            if (add) {
              Write(backend, before, out);
            }
            backend->MatMul(matrix.of(IsTested(backend)), on_x.data(), rows, on_bias,
                            add ? Backend::Output::kAdd : Backend::Output::kStore, out);
          });
        }
      }
    }
  }
}

// What verbs leave for products, and what they overwrite.
TEST_F(VerbParity, ProductsOfWhatWasJustWritten) {
  const int width = 96;
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    const Matrix matrix = Pack(dtype, width, width);
    for (const int rows : {3, 7}) {
      const int64_t count = int64_t{rows} * width;
      const std::vector<float> x = Random(2 * count);
      const std::vector<float> other = Random(count);
      const std::vector<float> weight = Random(width);
      StepBatch batch;
      batch.num_rows = rows;
      for (int row = 0; row < rows; ++row) batch.tokens.push_back(5 * row);
      Compare(batch, 6 * count, 1e-2, [&](Backend* backend, const StepBatch& step, float* out) {
        const PackedMatrix& packed = matrix.of(IsTested(backend));
        const BufferOf<float> on_x = Upload(backend, x);
        const BufferOf<float> on_other = Upload(backend, other);
        const BufferOf<float> on_weight = Upload(backend, weight);
        const BufferOf<float> a = Poisoned(backend, count);
        const auto norm = [&] { backend->RmsNorm(on_x.data(), on_weight, 1e-5, rows, a.data()); };
        const auto multiply = [&](const float* operand, float* to) {
          backend->MatMul(packed, operand, rows, {}, Backend::Output::kStore, to);
        };
        norm();
        multiply(a.data(), out);
        backend->SwiGlu(on_x.data(), rows, width, a.data());
        multiply(a.data(), out + count);
        backend->Gelu(Backend::GeluForm::kTanh, rows, width, a.data());
        multiply(a.data(), out + 2 * count);
        norm();
        multiply(on_other.data(), out + 3 * count);
        multiply(a.data(), out + 3 * count);
        norm();
        multiply(on_other.data(), a.data());
        multiply(a.data(), out + 4 * count);
        norm();
        backend->Embed(step, packed, a.data());
        multiply(a.data(), out + 5 * count);
        EXPECT_EQ(backend->memory()->Read(out, 1).size(), 1u);  // before the buffers go
      });
    }
  }
}

TEST_F(VerbParity, RandomMatrices) {
  const int vocab = 40;
  const int width = 300;
  StepBatch batch;
  for (int token = 0; token < vocab; ++token) batch.tokens.push_back(token);
  batch.num_rows = vocab;
  for (const uint64_t seed : {1u, 77u}) {
    Compare(batch, vocab * width, 0, [&](Backend* backend, const StepBatch&, float* out) {
      const auto table = backend->PackRandom(vocab, width, seed, 0.5f, {});
      ASSERT_TRUE(table.ok()) << table.status();
      backend->Embed(batch, **table, out);
      EXPECT_EQ(backend->memory()->Read(out, 1).size(), 1u);  // before the table goes
    });
  }
}

TEST_F(VerbParity, RowsOfTables) {
  const int vocab = 50;
  const int width = 40;
  StepBatch batch;
  batch.tokens = {49, 0, 7, 7, 31};
  batch.num_rows = static_cast<int>(batch.tokens.size());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    const Matrix table = Pack(dtype, vocab, width);
    // Padding may add rows to a step.
    Compare(batch, batch.num_rows * width, 0, [&](Backend* backend, const StepBatch&, float* out) {
      backend->Embed(batch, table.of(IsTested(backend)), out);
    });
  }
  for (const int row : {4, 0, 2}) batch.logits.emplace_back().row = row;
  const std::vector<float> x = Random(batch.num_rows * width);
  Compare(batch, 3 * width, 0, [&](Backend* backend, const StepBatch&, float* out) {
    const BufferOf<float> on_x = Upload(backend, x);
    backend->TakeLogitRows(batch, on_x.data(), width, out);
  });
}

// Draws, with every filter alone and together, with and without changes of logits, and
// log-probabilities.
TEST_F(VerbParity, Samples) {
  const SamplingParams kParams[] = {
      {},
      {.temperature = 1.0f},
      {.temperature = 0.7f, .top_k = 5},
      {.temperature = 1.3f, .top_p = 0.8f},
      {.temperature = 1.0f, .min_p = 0.1f},
      {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .min_p = 0.02f},
      {.repetition_penalty = 1.5f},
      {.temperature = 1.0f, .top_k = 20, .repetition_penalty = 1.3f},
      {.temperature = 1.0f, .top_k = 1},
      {.temperature = 0.01f, .top_p = 0.1f},
  };
  for (const int vocab : {3, 64, 1000, 2500}) {
    SeenTokens seen(vocab);
    for (int token = 0; token < vocab; token += 3) seen.Add(token);
    std::vector<LogitChange> changes;
    for (int token = 0; token < vocab; token += 1 + vocab / 100) {
      const float bias = static_cast<float>(static_cast<int>(random_() % 9) - 4);
      changes.push_back({token, bias, token % 2 == 0 ? -INFINITY : -bias / 3});
    }
    std::vector<LogitChange> all_masked;
    for (int token = 0; token < vocab; ++token) all_masked.push_back({token, 0, -INFINITY});
    StepBatch batch;
    std::vector<SamplingParams> params;
    for (int round = 0; round < 4; ++round) {
      for (SamplingParams one : kParams) {
        one.seed = random_();
        params.push_back(one);
      }
    }
    for (const SamplingParams& one : params) {
      LogitsTask& task = batch.logits.emplace_back();
      task.sampling = &one;
      task.index = batch.logits.size();
      task.num_top_logprobs = static_cast<int>(batch.logits.size() % 4) - 1;
      if (one.repetition_penalty != 1.0f) task.seen = &seen;
      if (batch.logits.size() % 2 == 0) task.changes = &changes;
      if (batch.logits.size() % 16 == 8) task.changes = &all_masked;
    }
    for (int token = 0; token < 3; ++token) {
      batch.logits.emplace_back().scored_token = token;
      batch.logits.back().num_top_logprobs = 2 * token;
    }
    batch.num_rows = static_cast<int>(batch.logits.size());
    batch.tokens.assign(batch.num_rows, 0);
    std::vector<float> logits = Random(batch.num_rows * vocab, 2.0f);
    // Of three rows, at the first, a middle and the last token.
    logits[0] = std::nanf("");
    logits[2 * vocab + vocab / 2] = INFINITY;
    logits[6 * vocab - 1] = -INFINITY;
    const std::set<size_t> bad_rows = {0, 2, 5};
    logits[vocab] = logits[vocab + 1];  // a tie

    std::vector<Sample> samples[2];
    int n = 0;
    for (Backend* backend : {reference_.get(), tested_.get()}) {
      const BufferOf<float> on_logits = Upload(backend, logits);
      backend->RunStep(
          batch, [&](const StepBatch&) { backend->SampleTokens(batch, on_logits.data(), vocab); },
          &samples[n++]);
    }
    ASSERT_EQ(samples[0].size(), batch.logits.size());
    ASSERT_EQ(samples[1].size(), batch.logits.size());
    for (size_t i = 0; i < samples[0].size(); ++i) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << ", row " << i);
      for (const auto& of_backend : samples) {
        EXPECT_EQ(of_backend[i].finite, !bad_rows.contains(i));
      }
      if (bad_rows.contains(i)) continue;
      EXPECT_EQ(samples[0][i].token, samples[1][i].token);
      if (batch.logits[i].sampling != nullptr && batch.logits[i].num_top_logprobs < 0) continue;
      EXPECT_NEAR(samples[0][i].logprob, samples[1][i].logprob, 1e-4f);
      ASSERT_EQ(samples[0][i].top_logprobs.size(), samples[1][i].top_logprobs.size());
      for (size_t t = 0; t < samples[0][i].top_logprobs.size(); ++t) {
        EXPECT_EQ(samples[0][i].top_logprobs[t].token, samples[1][i].top_logprobs[t].token);
        EXPECT_NEAR(samples[0][i].top_logprobs[t].logprob, samples[1][i].top_logprobs[t].logprob,
                    1e-4f);
      }
    }
  }
}

}  // namespace
}  // namespace folio::test
