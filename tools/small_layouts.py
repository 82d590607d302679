"""Small random checkpoints in the layouts that people have: a family's weights of tests/golden with the vocabulary, the tokenizer files
and the chat template of its instruct models."""
import json
import pathlib
import shutil
import struct

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
# Name: folder of the weights, of the tokenizer and template, and what its chat format is called.
LAYOUTS = {
    "Llama-2": ("llama/gqa", "llama2"),
    "Llama-3": ("llama/gqa", "llama3"),
    "Llama-3.1": ("llama/gqa", "llama3.1"),
    "Mistral": ("families/mistral", "mistral-v3"),
    "Mixtral": ("families/mixtral", "mistral"),
    "Qwen2.5": ("families/qwen2", "chatml"),
    "Qwen3": ("families/qwen3", "chatml"),
    "Phi-3": ("families/phi3", "phi3"),
    "Gemma-2": ("families/gemma2", "gemma"),
    "Gemma-3": ("families/gemma3", "gemma"),
    "GPTQ": ("quantised/gptq", "llama2"),
    "AWQ": ("quantised/awq", "llama2"),
    "fp8": ("quantised/fp8_tensor", "llama3"),
}


def read_tensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    body = data[8 + size:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def widened(tensor, rows):
    """The rows again and again, until there are so many."""
    dtype, shape, values = tensor
    row = len(values) // shape[0]
    return dtype, [rows, *shape[1:]], b"".join(values[row * (i % shape[0]):][:row] for i in range(rows))


def make(name, directory):
    """Writes the checkpoint and returns the name of its chat format."""
    weights, template = LAYOUTS[name]
    directory.mkdir(parents=True)
    for path in (GOLDEN / "chat" / template).glob("*token*"):
        shutil.copy(path, directory)
    for path in (GOLDEN / "chat" / template).glob("*.jinja"):
        shutil.copy(path, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    config = json.loads((GOLDEN / weights / "config.json").read_text())
    config["vocab_size"] = max(ids) + 1
    (directory / "config.json").write_text(json.dumps(config))
    tensors = read_tensors(GOLDEN / weights / "model.safetensors")
    write_tensors(directory / "model.safetensors", {
        tensor: widened(value, max(ids) + 1) if tensor.split(".")[-2] in ("embed_tokens", "lm_head") else value
        for tensor, value in tensors.items()})
    return template
