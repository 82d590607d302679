"""Writes the GGUF files that ./dev bench --against gives to the peers' programs: the shape of TinyLlama-1.1B with random
weights in each format, and the same with few layers (tools/against/llama_bench.py says what for).

The container is that of the GGUF specification, version 3; the blocks are those of ggml's formats. Matrices repeat one
random stretch, turned from matrix to matrix: how fast a product is does not depend on its weights while they are finite."""
import argparse
import dataclasses
import pathlib
import random
import struct
import sys

ALIGNMENT = 32
FEW_LAYERS = 2
F32 = 0
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of tokens of the vocabulary


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int


@dataclasses.dataclass(frozen=True)
class Format:
    type: int  # ggml's number of it
    file_type: int  # llama.cpp's number of files most of whose matrices have it
    elements: int  # of a block
    bytes: int  # of a block
    fixed: dict  # byte of a block: the values it may have, drawn from at random; the other bytes have any value
    head: str = ""  # the output matrix's format where it is another: llama.cpp's own choice


def fp16(offset, value):
    return {offset + i: bytes([byte]) for i, byte in enumerate(struct.pack("<e", value))}


FORMATS = {  # weights of about 0.02
    "bf16": Format(30, 32, 1, 2, {1: b"\x3c\xbc"}),
    "f16": Format(1, 1, 1, 2, {1: b"\x24\x25\x26\x27\xa4\xa5\xa6\xa7"}),
    "q8_0": Format(8, 7, 32, 34, fp16(0, 0.02 / 74)),
    "q4_0": Format(2, 2, 32, 18, fp16(0, 0.02 / 4.6), head="q6_K"),
    "q6_K": Format(14, 18, 256, 210, fp16(208, 0.02 / (18 * 74))),
}
TINYLLAMA = Shape("tinyllama-1.1b", 22, 2048, 5632, 32, 4, 32000)


def few_layers(shape):
    return dataclasses.replace(shape, name=f"{shape.name}-{FEW_LAYERS}-layers", layers=FEW_LAYERS)


def path_of(directory, shape, name):
    return pathlib.Path(directory) / "models" / f"{shape.name}.{name}.gguf"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == STRING:
        return text(content)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], content)


def entry(key, kind, content):
    """A pair of key and value; a list is an array of values of that kind."""
    if isinstance(content, list):
        items = b"".join(value(kind, item) for item in content)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(content)) + items
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def vocabulary(size):
    """[(token, kind)] as a SentencePiece model has them: three special ones, all bytes, then words."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    special += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    return special + [(f"\u2581word{n}", NORMAL) for n in range(size - len(special))]


def entries(shape, name):
    tokens = vocabulary(shape.vocab)
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, f"{shape.name}, random weights"),
        entry("general.file_type", UINT32, FORMATS[name].file_type),
        entry("general.alignment", UINT32, ALIGNMENT),
        entry("llama.context_length", UINT32, 1 << 20),
        entry("llama.embedding_length", UINT32, shape.hidden),
        entry("llama.block_count", UINT32, shape.layers),
        entry("llama.feed_forward_length", UINT32, shape.intermediate),
        entry("llama.attention.head_count", UINT32, shape.heads),
        entry("llama.attention.head_count_kv", UINT32, shape.kv_heads),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.rope.dimension_count", UINT32, shape.hidden // shape.heads),
        entry("llama.rope.freq_base", FLOAT32, 10000.0),
        entry("llama.vocab_size", UINT32, shape.vocab),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.tokens", STRING, [token for token, _ in tokens]),
        entry("tokenizer.ggml.scores", FLOAT32, [-float(n) for n in range(len(tokens))]),
        entry("tokenizer.ggml.token_type", INT32, [kind for _, kind in tokens]),
        entry("tokenizer.ggml.unknown_token_id", UINT32, 0),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
        entry("tokenizer.ggml.add_bos_token", BOOL, True),
    ]


def tensors(shape, name):
    """[(name, (inputs, outputs) or (size,), format or "" for a vector of fp32)]"""
    hidden, kv = shape.hidden, shape.hidden // shape.heads * shape.kv_heads
    matrices = [("attn_q", hidden, hidden), ("attn_k", hidden, kv), ("attn_v", hidden, kv), ("attn_output", hidden, hidden),
                ("ffn_gate", hidden, shape.intermediate), ("ffn_up", hidden, shape.intermediate),
                ("ffn_down", shape.intermediate, hidden)]
    found = [("token_embd.weight", (hidden, shape.vocab), name), ("output_norm.weight", (hidden,), ""),
             ("output.weight", (hidden, shape.vocab), FORMATS[name].head or name)]
    for layer in range(shape.layers):
        found += [(f"blk.{layer}.{norm}.weight", (hidden,), "") for norm in ("attn_norm", "ffn_norm")]
        found += [(f"blk.{layer}.{matrix}.weight", (inputs, outputs), name) for matrix, inputs, outputs in matrices]
    return found


def size_of(dims, name):
    if not name:
        return 4 * dims[0]
    form = FORMATS[name]
    if dims[0] % form.elements:
        raise ValueError(f"{name} has blocks of {form.elements} weights, a row has {dims[0]}")
    return dims[0] * dims[1] // form.elements * form.bytes


def stretch(name, blocks=262_147):
    """Random blocks of a format. Their number is a prime, so that no two rows of a matrix begin with the same one."""
    form, source = FORMATS[name], random.Random(1)
    data = bytearray(source.randbytes(blocks * form.bytes))
    for offset, values in form.fixed.items():
        drawn = bytes(values[i % len(values)] for i in range(256))
        data[offset::form.bytes] = source.randbytes(blocks).translate(drawn)
    return bytes(data)


def padding(size):
    return -size % ALIGNMENT


def write_matrix(file, size, data, begin):
    """`size` bytes of `data`, from `begin` on and again and again."""
    while size > 0:
        part = memoryview(data)[begin:begin + size]
        file.write(part)
        size -= len(part)
        begin = 0


def write_model(path, shape, name):
    described, infos, offset = tensors(shape, name), [], 0
    for tensor, dims, form in described:
        kind = FORMATS[form].type if form else F32
        infos.append(text(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        size = size_of(dims, form)
        offset += size + padding(size)
    pairs = entries(shape, name)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(described), len(pairs)) + b"".join(pairs) + b"".join(infos)
    data = {form: stretch(form) for form in {form for _, _, form in described if form}}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb") as file:
        file.write(header + bytes(padding(len(header))))
        for n, (_, dims, form) in enumerate(described):
            size = size_of(dims, form)
            if form:
                blocks = len(data[form]) // FORMATS[form].bytes
                write_matrix(file, size, data[form], n * 9_973 % blocks * FORMATS[form].bytes)
            else:
                file.write(struct.pack("<f", 1.0) * dims[0])
            file.write(bytes(padding(size)))
    unfinished.rename(path)


def files(directory):
    """[(path, shape, format)] of all that the rows of tools/against/rows.py need."""
    wanted = [(TINYLLAMA, name) for name in ("bf16", "f16", "q8_0", "q4_0")] + [(few_layers(TINYLLAMA), "q4_0")]
    return [(path_of(directory, shape, name), shape, name) for shape, name in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", help="the files go to DIR/models, 6.5 GB in all")
    for path, shape, name in files(parser.parse_args().directory):
        if not path.exists():
            write_model(path, shape, name)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
