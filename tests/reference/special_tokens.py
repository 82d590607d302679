"""Which tokens transformers puts in front of a text, and which one it says ends one, for a tokenizer.json with different
tokenizer_config.json files.

Writes <golden>/bpe/special_tokens.json: kind of the tokenizer (a folder beside it), text of tokenizer_config.json, front, eos.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from transformers import AutoTokenizer


def added(content: str) -> dict:
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False}


END, BEGIN, IM_END = "<|endoftext|>", "<|begin_of_text|>", "<|im_end|>"
CASES = [
    ("gpt2", {"tokenizer_class": "GPT2Tokenizer"}),
    ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "bos_token": END, "add_bos_token": True}),
    ("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": added(END), "bos_token": added(END)}),
    ("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}),
    ("neox", {"tokenizer_class": "GPTNeoXTokenizer"}),
    ("neox", {"tokenizer_class": "GPTNeoXTokenizerFast", "add_bos_token": True, "bos_token": END, "eos_token": added(END)}),
    ("neox", {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True}),
    ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None, "eos_token": IM_END}),
    ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    ("qwen2", {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": added("<|im_start|>"),
               "eos_token": added(END)}),
    ("qwen2", {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>", "eos_token": END}),
    ("llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": BEGIN}),
    ("llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": BEGIN, "eos_token": None}),
    ("llama3", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "bos_token": BEGIN, "eos_token": BEGIN}),
]


def case(golden: Path, kind: str, config: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(golden / "bpe" / kind / "tokenizer.json", folder)
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        alone = tokenizer.encode("the house", add_special_tokens=False)
        whole = tokenizer.encode("the house")
        assert whole[len(whole) - len(alone):] == alone, "nothing comes after a text"
        eos = tokenizer.eos_token_id
    return {"kind": kind, "tokenizer_config": config, "front": whole[:len(whole) - len(alone)],
            "eos": -1 if eos is None else eos}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    golden = parser.parse_args().golden
    lines = [json.dumps(case(golden, kind, config)) for kind, config in CASES]
    (golden / "bpe" / "special_tokens.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
