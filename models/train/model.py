"""A Llama in plain PyTorch, with the auxiliary chunk-selection loss that training may add."""
import torch
import torch.nn.functional as F
from torch import nn

SELECTION_SHARPNESS = 4.0
MIN_MASS = 0.3


def config(vocab_size, dim=128, layers=4, heads=4, kv_heads=4, ffn=352, length=256):
    """The Hugging Face config.json of a model."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": vocab_size, "hidden_size": dim, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": dim // heads, "max_position_embeddings": length, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}


def rope_table(positions, head_dim, base):
    theta = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = positions.float()[:, None] * theta
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def rotate(x, table):
    cos, sin = table
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def chunk_representations(q, k, v, chunk, base):
    """LongHeads eq. 1-2: [B, H, T, D] each -> [B, H, T / chunk, D], chunk-local rotation."""
    batch, heads, length, dim = q.shape
    table = rope_table(torch.arange(length) % chunk, dim, base)
    split = lambda x: x.reshape(batch, heads, length // chunk, chunk, dim)
    keys, queries, values = split(rotate(k, table)), split(rotate(q, table)), split(v)
    scale = dim ** -0.5
    outputs = torch.softmax(queries @ keys.transpose(-1, -2) * scale, -1) @ values
    query = outputs.mean(3, keepdim=True)
    weights = torch.softmax((query * keys).sum(-1) * scale, -1)
    return (weights[..., None] * keys).sum(3)


def selection_loss(q, k, v, attention, chunk, base):
    """How badly chunk scores predict where the heads look (all q, k not rotated).

    For every query the scores of earlier chunks (not the first, not the last two) should follow the head's own
    attention mass on them: a KL divergence, weighted by that mass where it is considerable.
    """
    batch, heads, length, dim = q.shape
    num_chunks = length // chunk
    scores = q @ chunk_representations(q, k, v, chunk, base).transpose(-1, -2)
    scores = scores * (dim ** -0.5 * SELECTION_SHARPNESS)
    own = torch.arange(length)[:, None] // chunk
    index = torch.arange(num_chunks)[None]
    hidden = (index > own - 2) | (index < 1)
    mass = attention.detach().view(batch, heads, length, num_chunks, chunk).sum(-1)
    mass = mass.masked_fill(hidden, 0.0)
    total = mass.sum(-1)
    target = mass / (total[..., None] + 1e-6)
    log_choice = torch.log_softmax(scores.masked_fill(hidden, -1e4), -1)
    divergence = (target * ((target + 1e-6).log() - log_choice)).masked_fill(hidden, 0.0).sum(-1)
    weight = total * (total > MIN_MASS)
    return (divergence * weight).sum() / (weight.sum() + 1e-3)


class RmsNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim, self.base = c["head_dim"], c["rope_theta"]
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.q_proj = linear(c["hidden_size"], self.heads * self.head_dim)
        self.k_proj = linear(c["hidden_size"], self.kv_heads * self.head_dim)
        self.v_proj = linear(c["hidden_size"], self.kv_heads * self.head_dim)
        self.o_proj = linear(self.heads * self.head_dim, c["hidden_size"])

    def project(self, x):
        """Un-rotated q, k, v [B, H, T, D]; kv heads repeated for their group."""
        split = lambda y, heads: y.view(x.shape[0], x.shape[1], heads, self.head_dim).transpose(1, 2)
        q = split(self.q_proj(x), self.heads)
        k, v = (split(p(x), self.kv_heads).repeat_interleave(self.heads // self.kv_heads, 1)
                for p in (self.k_proj, self.v_proj))
        return q, k, v

    def forward(self, x, table, chunk):
        """Causal attention; with chunk > 0 also the selection loss for chunks of that many tokens."""
        q, k, v = self.project(x)
        rotated_q, rotated_k = rotate(q, table), rotate(k, table)
        loss = 0.0
        if chunk:
            scores = rotated_q @ rotated_k.transpose(-1, -2) * self.head_dim ** -0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            attention = torch.softmax(scores.masked_fill(future, float("-inf")), -1)
            loss = selection_loss(q, k, v, attention, chunk, self.base)
            out = attention @ v
        else:
            out = F.scaled_dot_product_attention(rotated_q, rotated_k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)), loss


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, table, chunk):
        attended, loss = self.self_attn(self.input_layernorm(x), table, chunk)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), loss


class Llama(nn.Module):
    """Parameter names are those of Hugging Face without the leading 'model.'."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            if "o_proj" in name or "down_proj" in name:
                std *= (2 * c["num_hidden_layers"]) ** -0.5
            nn.init.normal_(parameter, std=std)

    def forward(self, ids, chunks=None):
        """Logits [B, T, V], and the mean selection loss if `chunks` gives each layer a chunk size."""
        c = self.config
        table = rope_table(torch.arange(ids.shape[1]), c["head_dim"], c["rope_theta"])
        x, losses = self.embed_tokens(ids), []
        for index, layer in enumerate(self.layers):
            x, loss = layer(x, table, chunks[index] if chunks else 0)
            losses.append(loss)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return logits, sum(losses) / len(losses)
