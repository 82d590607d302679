#include "engine/model/family.h"

#include "absl/strings/str_join.h"

namespace folio {
namespace {

using Style = DecoderStyle;

constexpr ConfigKeys kLlamaKeys = {
    .hidden_size = "hidden_size",
    .intermediate_size = "intermediate_size",
    .num_layers = "num_hidden_layers",
    .num_heads = "num_attention_heads",
    .num_kv_heads = "num_key_value_heads",
    .trained_length = "max_position_embeddings",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
};

constexpr TensorNames kLlamaTensors = {
    .embedding = "model.embed_tokens",
    .layers = "model.layers",
    .attention_norm = "input_layernorm",
    .mlp_norm = "post_attention_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .t = "self_attn.t_proj",
    .v = "self_attn.v_proj",
    .qkv = nullptr,
    .output = "self_attn.o_proj",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .final_norm = "model.norm",
    .head = "lm_head",
};

constexpr TensorNames kQwen3Tensors = [] {
  TensorNames names = kLlamaTensors;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}();

constexpr TensorNames kPhi3Tensors = [] {
  TensorNames names = kLlamaTensors;
  names.q = names.k = names.t = names.v = names.gate = nullptr;
  names.qkv = "self_attn.qkv_proj";
  names.up = "mlp.gate_up_proj";
  return names;
}();

constexpr TensorNames kMixtralTensors = [] {
  TensorNames names = kLlamaTensors;
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts";
  names.gate = "w1";
  names.up = "w3";
  names.down = "w2";
  return names;
}();

constexpr ConfigKeys kGemmaKeys = [] {
  ConfigKeys keys = kLlamaKeys;
  keys.activation = "hidden_activation";
  return keys;
}();

constexpr TensorNames kGemma2Tensors = [] {
  TensorNames names = kLlamaTensors;
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}();

constexpr TensorNames kGemma3Tensors = [] {
  TensorNames names = kGemma2Tensors;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}();

constexpr Style kGemmaStyle = {.mlp = Style::Mlp::kGeGluTanh,
                               .weights_from_one = true,
                               .post_norms = true,
                               .scaled_embedding = true};

constexpr Style kGemma3Style = [] {
  Style style = kGemmaStyle;
  style.head_norms = true;
  return style;
}();

constexpr Family kFamilies[] = {
    {
        .architecture = "LlamaForCausalLM",
        .model_type = "llama",
        .keys = kLlamaKeys,
        .tensors = kLlamaTensors,
        .style = {},
        .known_activation = "silu",
        .default_norm_eps = 1e-6,
        .default_bos = 1,
        .default_eos = 2,
        .coca = true,
    },
    {
        .architecture = "MistralForCausalLM",
        .model_type = "mistral",
        .keys = kLlamaKeys,
        .tensors = kLlamaTensors,
        .style = {},
        .known_activation = "silu",
        .default_norm_eps = 1e-6,
        .default_bos = 1,
        .default_eos = 2,
        .windowed = true,
        .default_window = 4096,
    },
    {
        .architecture = "Qwen2ForCausalLM",
        .model_type = "qwen2",
        .keys = kLlamaKeys,
        .tensors = kLlamaTensors,
        .style = {.qkv_bias = true},
        .known_activation = "silu",
        .default_norm_eps = 1e-6,
        .default_bos = -1,
        .default_eos = -1,
    },
    {
        .architecture = "Qwen3ForCausalLM",
        .model_type = "qwen3",
        .keys = kLlamaKeys,
        .tensors = kQwen3Tensors,
        .style = {.head_norms = true},
        .known_activation = "silu",
        .default_norm_eps = 1e-6,
        .default_bos = -1,
        .default_eos = -1,
        .default_head_dim = 128,
    },
    {
        .architecture = "Phi3ForCausalLM",
        .model_type = "phi3",
        .keys = kLlamaKeys,
        .tensors = kPhi3Tensors,
        .style = {.qkv_layout = Style::QkvLayout::kStacked, .fused_gate = true},
        .known_activation = "silu",
        .default_norm_eps = 1e-5,
        .default_bos = 1,
        .default_eos = 32000,
        .windowed = true,
    },
    {
        .architecture = "MixtralForCausalLM",
        .model_type = "mixtral",
        .keys = kLlamaKeys,
        .tensors = kMixtralTensors,
        .style = {},
        .known_activation = "silu",
        .default_norm_eps = 1e-5,
        .default_bos = 1,
        .default_eos = 2,
        .windowed = true,
        .default_rope_base = 1e6,
    },
    {
        .architecture = "Gemma2ForCausalLM",
        .model_type = "gemma2",
        .keys = kGemmaKeys,
        .tensors = kGemma2Tensors,
        .style = kGemmaStyle,
        .known_activation = "gelu_pytorch_tanh",
        .default_norm_eps = 1e-6,
        .default_bos = 2,
        .default_eos = 1,
        .default_head_dim = 256,
        .full_layer_period = 2,
        .tied = true,
    },
    {
        .architecture = "Gemma3ForCausalLM",
        .model_type = "gemma3_text",
        .keys = kGemmaKeys,
        .tensors = kGemma3Tensors,
        .style = kGemma3Style,
        .known_activation = "gelu_pytorch_tanh",
        .default_norm_eps = 1e-6,
        .default_bos = 2,
        .default_eos = 1,
        .default_head_dim = 256,
        .default_rope_base = 1e6,
        .full_layer_period = 6,
        .tied = true,
    },
    {
        .architecture = "GPTJForCausalLM",
        .model_type = "gptj",
        .keys = {.hidden_size = "n_embd",
                 .intermediate_size = "n_inner",
                 .num_layers = "n_layer",
                 .num_heads = "n_head",
                 .num_kv_heads = nullptr,
                 .trained_length = "n_positions",
                 .norm_eps = "layer_norm_epsilon",
                 .activation = "activation_function"},
        .tensors = {.embedding = "transformer.wte",
                    .layers = "transformer.h",
                    .attention_norm = "ln_1",
                    .mlp_norm = nullptr,
                    .q = "attn.q_proj",
                    .k = "attn.k_proj",
                    .t = nullptr,
                    .v = "attn.v_proj",
                    .qkv = nullptr,
                    .output = "attn.out_proj",
                    .gate = nullptr,
                    .up = "mlp.fc_in",
                    .down = "mlp.fc_out",
                    .final_norm = "transformer.ln_f",
                    .head = "lm_head"},
        .style = {.norm = Style::Norm::kLayer,
                  .mlp = Style::Mlp::kGeluTanh,
                  .residual = Style::Residual::kParallelSharedNorm,
                  .rotary_pairs = Style::RotaryPairs::kInterleaved,
                  .norm_bias = true,
                  .mlp_bias = true,
                  .head_bias = true},
        .known_activation = "gelu_new",
        .default_norm_eps = 1e-5,
        .default_bos = 50256,
        .default_eos = 50256,
        .default_rotary_dim = 64,
    },
    {
        .architecture = "GPTNeoXForCausalLM",
        .model_type = "gpt_neox",
        .keys = {.hidden_size = "hidden_size",
                 .intermediate_size = "intermediate_size",
                 .num_layers = "num_hidden_layers",
                 .num_heads = "num_attention_heads",
                 .num_kv_heads = nullptr,
                 .trained_length = "max_position_embeddings",
                 .norm_eps = "layer_norm_eps",
                 .activation = "hidden_act"},
        .tensors = {.embedding = "gpt_neox.embed_in",
                    .layers = "gpt_neox.layers",
                    .attention_norm = "input_layernorm",
                    .mlp_norm = "post_attention_layernorm",
                    .q = nullptr,
                    .k = nullptr,
                    .t = nullptr,
                    .v = nullptr,
                    .qkv = "attention.query_key_value",
                    .output = "attention.dense",
                    .gate = nullptr,
                    .up = "mlp.dense_h_to_4h",
                    .down = "mlp.dense_4h_to_h",
                    .final_norm = "gpt_neox.final_layer_norm",
                    .head = "embed_out"},
        .style = {.norm = Style::Norm::kLayer,
                  .mlp = Style::Mlp::kGeluErf,
                  .residual = Style::Residual::kParallel,
                  .qkv_layout = Style::QkvLayout::kPerHead,
                  .norm_bias = true,
                  .qkv_bias = true,
                  .output_bias = true,
                  .mlp_bias = true},
        .known_activation = "gelu",
        .default_norm_eps = 1e-5,
        .default_bos = 0,
        .default_eos = 2,
        .default_rotary_part = 0.25,
        .coca = true,
    },
    {
        .architecture = "MptForCausalLM",
        .model_type = "mpt",
        .keys = {.hidden_size = "d_model",
                 .intermediate_size = nullptr,
                 .num_layers = "n_layers",
                 .num_heads = "n_heads",
                 .num_kv_heads = nullptr,
                 .trained_length = "max_seq_len",
                 .norm_eps = "layer_norm_epsilon",
                 .activation = nullptr},
        .tensors = {.embedding = "transformer.wte",
                    .layers = "transformer.blocks",
                    .attention_norm = "norm_1",
                    .mlp_norm = "norm_2",
                    .q = nullptr,
                    .k = nullptr,
                    .t = nullptr,
                    .v = nullptr,
                    .qkv = "attn.Wqkv",
                    .output = "attn.out_proj",
                    .gate = nullptr,
                    .up = "ffn.up_proj",
                    .down = "ffn.down_proj",
                    .final_norm = "transformer.norm_f",
                    .head = "lm_head"},
        .style = {.norm = Style::Norm::kLayer,
                  .mlp = Style::Mlp::kGeluErf,
                  .qkv_layout = Style::QkvLayout::kStacked},
        .known_activation = nullptr,
        .default_norm_eps = 1e-5,
        .default_bos = -1,
        .default_eos = -1,
        .tied = true,
    },
};

}  // namespace

std::span<const Family> AllFamilies() { return kFamilies; }

const Family* FindFamily(const std::string& architecture) {
  // Names that older code wrote.
  if (architecture == "MPTForCausalLM") return FindFamily("MptForCausalLM");
  if (architecture == "LLaMAForCausalLM") return FindFamily("LlamaForCausalLM");
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture) return &family;
  }
  return nullptr;
}

std::string MissingFor(const std::string& architecture) {
  if (architecture == "Gemma3ForConditionalGeneration") {
    return "images; known of it: Gemma3ForCausalLM, its text model alone";
  }
  return "";
}

std::string KnownArchitectures() {
  return absl::StrJoin(kFamilies, ", ", [](std::string* out, const Family& family) {
    out->append(family.architecture);
  });
}

}  // namespace folio
