"""A Llama in plain PyTorch, with the auxiliary chunk-selection losses that training may add."""
import torch
import torch.nn.functional as F
from torch import nn

SELECTION_SHARPNESS = 4.0
MIN_MASS = 0.3
POOL_CHUNK, POOL_CHUNKS = 16, 16  # LongHeads' defaults in the service


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


class Pool:
    """The queries of a batch that answer a question, and the chunks of the whole batch as one document for them.

    tokens, owners, is_answer: [B, T], as the rows have them (owners and is_answer of the following token). A query may choose
    among the chunks of its own row that end before its previous chunk and all chunks of other rows, without those that
    state the same fact (of which only its own row has the right one) and without the first chunk of each row.
    """

    def __init__(self, tokens, owners, is_answer):
        batch, length = tokens.shape
        num_chunks = length // POOL_CHUNK
        self.row, self.position = torch.nonzero(is_answer, as_tuple=True)
        far = self.position >= 2 * POOL_CHUNK
        self.row, self.position = self.row[far], self.position[far]
        self.tokens = tokens[self.row, self.position]
        self.own, self.offset = self.position // POOL_CHUNK, self.position % POOL_CHUNK
        asked = owners[self.row, self.position]
        # Input token t is the one whose owner stands at t - 1.
        own_tokens = F.pad(owners, (1, 0))[:, :length].reshape(batch * num_chunks, POOL_CHUNK)
        states = (own_tokens[None] == asked[:, None, None]).any(-1)
        chunk = torch.arange(batch * num_chunks)
        same_row = chunk[None] // num_chunks == self.row[:, None]
        index = chunk % num_chunks
        before = index[None] <= self.own[:, None] - 2
        self.allowed = torch.where(same_row, before, ~states) & (index > 0)
        self.right = same_row & before & states & (index > 0)
        self.first = self.row * num_chunks

    def selection_loss(self, q, representations, attention):
        """How low the right chunks rank among all, for heads that look at them.

        q [B, H, T, D], representations [B, H, C, D], attention [B, H, T, T]. The cross-entropy between the attention
        that a head pays to the right chunks of its row and its chunk scores over the pool, weighted by that attention
        where it is considerable.
        """
        batch, heads, length, dim = q.shape
        q = q[self.row, :, self.position]
        flat = representations.transpose(0, 1).reshape(heads, -1, dim)
        scores = torch.einsum("qhd,hpd->qhp", q, flat) * (dim ** -0.5 * SELECTION_SHARPNESS)
        log_choice = torch.log_softmax(scores.masked_fill(~self.allowed[:, None], -1e4), -1)
        mass = attention.detach()[self.row, :, self.position].view(-1, heads, length // POOL_CHUNK, POOL_CHUNK).sum(-1)
        mass = mass * self.right[:, None].view(len(mass), 1, batch, -1)[torch.arange(len(mass)), :, self.row]
        total = mass.sum(-1)
        rows = log_choice.view(len(mass), heads, batch, -1)[torch.arange(len(mass)), :, self.row]
        divergence = -(mass * rows).sum(-1) / (total + 1e-6)
        weight = total * (total > MIN_MASS)
        return (divergence * weight).sum() / (weight.sum() + 1e-3)

    def attend(self, q, k, v, representations, base):
        """LongHeads' attention of queries q [Q, H, D] over the pool, k and v [B, H, T, D] not rotated -> [Q, H, D]."""
        batch, heads, length, dim = k.shape
        flat = representations.transpose(0, 1).reshape(heads, -1, dim)
        with torch.no_grad():
            scores = torch.einsum("qhd,hpd->qhp", q, flat).masked_fill(~self.allowed[:, None], -1e9)
            best = scores.topk(POOL_CHUNKS - 3, -1).indices.sort(-1).values
            fixed = lambda x: x[:, None, None].expand(-1, heads, 1)
            own = self.first + self.own
            chosen = torch.cat([fixed(self.first), best, fixed(own - 1), fixed(own)], -1)
            chosen = chosen + torch.arange(heads)[:, None] * flat.shape[1]
        keys = rotate(k, rope_table(torch.arange(length) % POOL_CHUNK, dim, base))
        gather = lambda x: F.embedding(chosen, x.transpose(0, 1).reshape(-1, POOL_CHUNK * dim)).view(
            len(q), heads, POOL_CHUNKS, POOL_CHUNK, dim)
        angles = (POOL_CHUNKS - 1 - torch.arange(POOL_CHUNKS)) * POOL_CHUNK + self.offset[:, None]
        cos, sin = (x.view(len(q), 1, POOL_CHUNKS, dim) for x in rope_table(angles.reshape(-1), dim, base))
        turned = rotate(q[:, :, None], (cos, sin))
        logits = (gather(keys) @ turned[..., None])[..., 0] * dim ** -0.5
        future = torch.arange(POOL_CHUNK)[None] > self.offset[:, None]
        hidden = torch.zeros(len(q), 1, POOL_CHUNKS, POOL_CHUNK, dtype=torch.bool)
        hidden[:, 0, -1] = future
        weights = torch.softmax(logits.masked_fill(hidden, float("-inf")).flatten(2), -1)
        return (weights[:, :, None] @ gather(v).flatten(2, 3))[:, :, 0]


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

    def forward(self, x, table, chunk=0, pool=None, pool_x=None):
        """Causal attention of x [B, T, C]; with chunk > 0 also the losses, and attention of pool_x [Q, C] over the pool.

        Returns (of x, of pool_x, selection loss within rows, selection loss over the pool).
        """
        q, k, v = self.project(x)
        rotated_q, rotated_k = rotate(q, table), rotate(k, table)
        join = lambda y: self.o_proj(y.reshape(*y.shape[:-2], -1))
        if not chunk:
            out = F.scaled_dot_product_attention(rotated_q, rotated_k, v, is_causal=True)
            return join(out.transpose(1, 2)), None, 0.0, 0.0
        scores = rotated_q @ rotated_k.transpose(-1, -2) * self.head_dim ** -0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        attention = torch.softmax(scores.masked_fill(future, float("-inf")), -1)
        row_loss = selection_loss(q, k, v, attention, chunk, self.base)
        representations = chunk_representations(q, k, v, POOL_CHUNK, self.base)
        pool_loss = pool.selection_loss(q, representations, attention)
        pool_q = self.q_proj(pool_x).view(len(pool_x), self.heads, self.head_dim)
        pool_out = pool.attend(pool_q, k, v, representations, self.base)
        return join((attention @ v).transpose(1, 2)), join(pool_out), row_loss, pool_loss


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

    def forward(self, x, table, chunk=0, pool=None, pool_x=None):
        normed = self.input_layernorm(pool_x) if chunk else None
        attended, pool_attended, *losses = self.self_attn(self.input_layernorm(x), table, chunk, pool, normed)
        finish = lambda y: y + self.mlp(self.post_attention_layernorm(y))
        return finish(x + attended), finish(pool_x + pool_attended) if chunk else None, losses


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

    def forward(self, ids, chunks=None, pool=None):
        """Logits [B, T, V].

        If `chunks` gives each layer a chunk size for the loss within rows, (logits [B, T, V], logits [Q, V] of the
        queries of the pool, mean selection loss within rows, mean selection loss over the pool).
        """
        c = self.config
        table = rope_table(torch.arange(ids.shape[1]), c["head_dim"], c["rope_theta"])
        head = lambda y: F.linear(self.norm(y), self.embed_tokens.weight)
        x = self.embed_tokens(ids)
        if not chunks:
            for layer in self.layers:
                x, _, _ = layer(x, table)
            return head(x)
        pool_x, losses = self.embed_tokens(pool.tokens), []
        for layer, chunk in zip(self.layers, chunks):
            x, pool_x, layer_losses = layer(x, table, chunk, pool, pool_x)
            losses.append(layer_losses)
        row_loss, pool_loss = (sum(each) / len(losses) for each in zip(*losses))
        return head(x), head(pool_x), row_loss, pool_loss
