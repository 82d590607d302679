"""Small BPE tokenizers of the kinds in use, and what the tokenizers library makes of awkward strings.

Writes <golden>/bpe/<kind>/{tokenizer.json, cases.json}; the cases are as in tokenization.py. Special tokens count as
plain text while encoding (encode_special_tokens), as a service must treat what its users write.
"""

import argparse
import json
from pathlib import Path

from metaspace import of_characters
from tokenization import TEXTS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = Path(__file__).parent.parent.parent / "models" / "texts" / "ezekiel.txt"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MORE = [
    "don't DON'T I'LL you'Re 've",
    "def f(x):\n        return  x  +  1\n\n\n    # done\n",
    "  <|endoftext|> and <|im_start|>user\n",
    "tabs\t\tand \t mixed   runs \n \n  x",
    "\u1e9b\u0323 \u212b \u0041\u030a \uac00 \u1100\u1161",  # NFC changes these
    "1234567 89 0x10 ١٢٣",
    "ab  cd    ef        gh",
]


def trained(pre, normalizer=None, **model) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT.read_text(), "\n".join(TEXTS + MORE)], trainer)
    return tokenizer


def split(pattern: str):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2() -> Tokenizer:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def neox() -> Tokenizer:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 25)])
    return tokenizer


def qwen2() -> Tokenizer:
    tokenizer = trained(split(QWEN2), normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = trained(split(LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    return tokenizer


def llama2() -> Tokenizer:
    return of_characters([], "always")


def mistral_v3() -> Tokenizer:
    return of_characters([AddedToken("[INST]")], "first")


def gemma() -> Tokenizer:
    tokenizer = of_characters([AddedToken("<start_of_turn>")], "never")
    tokenizer.add_tokens([AddedToken(character * n, normalized=False) for character in "\n" for n in range(2, 5)])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    golden = parser.parse_args().golden
    for make in (gpt2, neox, qwen2, llama3, llama2, mistral_v3, gemma):
        directory = golden / "bpe" / make.__name__
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer = make()
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
        tokenizer.encode_special_tokens = True
        cases = []
        for text in TEXTS + MORE:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
        (directory / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
        print(f"{make.__name__}: {tokenizer.get_vocab_size()} tokens, {len(cases)} strings")


if __name__ == "__main__":
    main()
