#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu/isa.h"
#include "engine/runtime/loaded_model.h"
#include "engine/runtime/model_runner.h"
#include "engine/types/attention_plan.h"
#include "tests/scratch_dir.h"

namespace folio::test {

// Path of a file under tests/.
std::string TestData(const std::string& relative);

struct ModelOptions {
  int page_tokens = 16;
  std::string kv_dtype = "auto";
  std::string cpu_isa = "auto";
  int num_threads = 2;
  int64_t kv_bytes = int64_t{256} << 20;
  int step_tokens = 512;
  // Pages find room there beside kv_bytes.
  std::string kv_dir = "";
  int64_t kv_disk_bytes = int64_t{1} << 30;
  std::string weight_dtype = "auto";
  int weight_group = 0;
  std::vector<AdapterSource> adapters = {};
};

// What LoadTestModel runs on; null: the CPU backend with the kernels of TestIsa().
using MakeBackend = std::unique_ptr<Backend> (*)();
enum class BackendSpeed { kFast, kEmulated };
void UseTestBackend(MakeBackend make, BackendSpeed speed = BackendSpeed::kFast);
bool OnTestBackend();
// Emulated CUDA and the portable kernels run fewer of the cases that differ only in how a text is
// cut into steps; all of them with FOLIO_TEST_SLOW set (./dev soak).
bool RunsSlowCases();
std::unique_ptr<Backend> NewTestBackend();
// Whether it runs models of the kind that lies in `dir`.
bool TestBackendRuns(const std::string& dir);

// FOLIO_TEST_ISA, or the best instruction set of this CPU.
Isa TestIsa();

// Loads a model for tests; fails the process if it cannot (a broken fixture).
std::unique_ptr<LoadedModel> LoadTestModel(const std::string& dir,
                                           const ModelOptions& options = {});

// A tiny Llama in a temporary directory, with random weights of this seed and TestSeed().
struct TinyShape {
  int hidden = 32;
  int layers = 2;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int vocab = 64;
  int trained_length = 128;
};
void WriteTinyModel(const TinyShape& shape, const std::string& dir, uint64_t seed = 1);

// One token stream fed to a model by hand, without scheduler.
class Stream {
 public:
  Stream(LoadedModel* model, AttentionPlan plan) : model_(model), plan_(std::move(plan)) {}
  Stream(Stream&& other) noexcept;
  ~Stream() { model_->store->Release(&kv_); }

  // A stream that goes on from here on its own.
  Stream Fork();

  // Makes room for the next `count` tokens and describes them as a slice that begins at `row`.
  SequenceSlice Next(int row, int count);
  // The tokens of the last slice are stored.
  void Done(int count);

  int64_t num_tokens() const { return num_tokens_; }
  const SequenceKv& kv() const { return kv_; }

 private:
  LoadedModel* const model_;
  const AttentionPlan plan_;
  SequenceKv kv_;
  int64_t num_tokens_ = 0;
};

// Logits [n][vocab] of all tokens: the prompt of the plan in pieces of the given sizes (the last
// one repeats), the answer token by token.
std::vector<float> AllLogits(LoadedModel* model, const AttentionPlan& plan,
                             const std::vector<int32_t>& tokens, const std::vector<int>& pieces);

float MaxAbsDifference(const std::vector<float>& a, const std::vector<float>& b);

// Tokens in [0, vocab), the same for the same seed and TestSeed().
std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed);

}  // namespace folio::test
