#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace folio {

// How the layers of a decoder are put together.
struct DecoderStyle {
  enum class Norm : unsigned char { kRms, kLayer };
  enum class Mlp : unsigned char { kSwiGlu, kGeGluTanh, kGeluTanh, kGeluErf };
  enum class Residual : unsigned char {
    kSequential,          // x + attention(norm(x)), then x + mlp(norm(x))
    kParallel,            // x + attention(norm_1(x)) + mlp(norm_2(x))
    kParallelSharedNorm,  // x + attention(norm(x)) + mlp(norm(x))
  };
  // Which elements of a head are turned together, of the first rotary_dim: (m, m + rotary_dim / 2),
  // or (2 m, 2 m + 1).
  enum class RotaryPairs : unsigned char { kHalves, kInterleaved };
  // Where q, k and v lie: three tensors; one, head by head [heads][q, k, v][head_dim]; or one, q of
  // all heads, then k, then v.
  enum class QkvLayout : unsigned char { kSeparate, kPerHead, kStacked };

  Norm norm = Norm::kRms;
  Mlp mlp = Mlp::kSwiGlu;
  Residual residual = Residual::kSequential;
  RotaryPairs rotary_pairs = RotaryPairs::kHalves;
  QkvLayout qkv_layout = QkvLayout::kSeparate;
  // Every head of q and of k has an RMS norm, before it is turned.
  bool head_norms = false;
  // RMS norms multiply by 1 + weight, which is what the engine keeps.
  bool weights_from_one = false;
  // What attention and MLP give has a norm of its own before it is added.
  bool post_norms = false;
  // Embeddings are multiplied by sqrt(hidden_size).
  bool scaled_embedding = false;
  // logit_cap * tanh(logit / logit_cap) of the output logits; 0: none.
  float logit_cap = 0;
  // Gate and up of a gated MLP are one tensor, called `up`, gate first.
  bool fused_gate = false;
  bool norm_bias = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool head_bias = false;

  bool gated() const { return mlp == Mlp::kSwiGlu || mlp == Mlp::kGeGluTanh; }
};

// Names of the tensors of a checkpoint without ".weight"; null: there is none.
struct TensorNames {
  const char* embedding;
  const char* layers;  // followed by ".N."
  const char* attention_norm;
  const char* mlp_norm;
  const char* attention_post_norm = nullptr;
  const char* mlp_post_norm = nullptr;
  const char* q;
  const char* k;
  const char* t;  // of CoCA models, instead of k
  const char* v;
  const char* qkv;
  const char* q_norm = nullptr;  // of single heads
  const char* k_norm = nullptr;
  const char* output;
  const char* gate;
  const char* up;
  const char* down;
  const char* router = nullptr;   // of a mixture of experts
  const char* experts = nullptr;  // followed by ".N."; gate, up and down are inside
  const char* final_norm;
  const char* head;
};

// Keys of config.json; null: the family has no such key.
struct ConfigKeys {
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_layers;
  const char* num_heads;
  const char* num_kv_heads;
  const char* trained_length;
  const char* norm_eps;
  const char* activation;
};

// One kind of checkpoint that Folio reads: names and fixed choices. What a config.json decides is
// in model_config.cc.
struct Family {
  const char* architecture;  // in "architectures"
  const char* model_type;
  ConfigKeys keys;
  TensorNames tensors;
  DecoderStyle style;
  const char* known_activation;
  double default_norm_eps;
  int32_t default_bos;
  int32_t default_eos;
  // Of its class, where the config has none; 0: hidden_size / number of heads.
  int default_head_dim = 0;
  // Every layer sees "sliding_window" tokens; so many where the config has no such key, 0: all.
  bool windowed = false;
  int default_window = 0;
  double default_rope_base = 1e4;
  // Every so many layers one sees all, the others "sliding_window" tokens; 0: all are alike.
  int full_layer_period = 0;
  // What its class rotates if the config does not say: a part of a head, or so many elements.
  double default_rotary_part = 1.0;
  int default_rotary_dim = 0;
  // Whether the head is the embedding where the config does not say.
  bool tied = false;
  // Checkpoints of it may be CoCA models.
  bool coca = false;
};

std::span<const Family> AllFamilies();

// nullptr if unknown.
const Family* FindFamily(const std::string& architecture);

// What Folio lacks for an architecture that it has not; empty where that is not known.
std::string MissingFor(const std::string& architecture);

// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string KnownArchitectures();

}  // namespace folio
