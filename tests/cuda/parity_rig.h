// The same work on the CPU backend and on the one under test.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/backend/backend.h"
#include "engine/kv/kv_store.h"

namespace folio::test {

// Fresh numbers of a normal distribution.
std::vector<float> RandomFloats(int64_t count, std::mt19937_64* random, float scale = 1.0f);

// ||a - b|| / ||b||; not a number in either, or another size: infinite.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);

// Memory of a backend that holds `values`, or `count` times not-a-number.
BufferOf<float> Upload(Backend* backend, const std::vector<float>& values);
void Write(Backend* backend, const std::vector<float>& values, float* to);
void Poison(Backend* backend, const BufferOf<float>& buffer);
BufferOf<float> Poisoned(Backend* backend, int64_t count);
std::vector<float> Download(Backend* backend, const BufferOf<float>& buffer);

// The CPU backend on fp32 operands, whatever this CPU has: products of bf16 operands would choose
// other chunks and tokens where scores nearly tie.
std::unique_ptr<Backend> ReferenceBackend();

// What the attention verbs work on.
struct AttentionShape {
  std::string name;
  int head_dim = 32;
  int num_heads = 4;
  int num_kv_heads = 2;
  int page_tokens = 16;
  DType dtype = DType::kBf16;
  bool alibi = false;
  int trained_length = 512;
  int num_layers = 2;

  KvGeometry geometry() const;
  AttentionModel model() const;
};

// One backend with a cache and some streams in it.
class AttentionRig {
 public:
  // With home_bytes, pages that are complete lie in the tier below the backend's memory.
  AttentionRig(const AttentionShape& shape, std::unique_ptr<Backend> backend, int max_rows,
               int64_t kv_bytes = int64_t{24} << 20, int64_t home_bytes = 0);
  ~AttentionRig();

  int AddStream(const AttentionPlan& plan);
  // Its pages are free for others, and it begins at its first token again.
  void Restart(int stream);
  // Takes the frames of a sequence that nobody reads: later ones lie behind them.
  void TakeFrames(const AttentionPlan& plan, int64_t num_tokens);

  // The next tokens of some streams.
  struct Part {
    int stream = 0;
    int count = 0;
  };
  // Runs them as one step with qkv [layer][rows][width] and returns the layers' results one after
  // the other.
  std::vector<float> Step(const std::vector<Part>& parts,
                          const std::vector<std::vector<float>>& qkv);

  // Chunks that the last row of a stream chose in the last step.
  const ChunkPicks& picks(int stream) const { return *streams_[stream]->picks; }
  Backend* backend() { return backend_.get(); }
  const KvStore& store() const { return *store_; }
  // Called in each step when all memory for it was taken.
  std::function<void()> on_reserved;

 private:
  struct Stream {
    AttentionPlan plan;
    SequenceKv kv;
    int64_t num_tokens = 0;
    std::shared_ptr<ChunkPicks> picks = std::make_shared<ChunkPicks>();
  };
  const AttentionShape shape_;
  const std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvStore> store_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<SequenceKv> taken_;
  // Of each layer, at the same place in every step, as a model has them.
  std::vector<BufferOf<float>> inputs_;
  std::vector<BufferOf<float>> outputs_;
};

}  // namespace folio::test
