"""Token ids and decoded text of awkward strings, from the Python sentencepiece library.

Writes <out>/cases.json, a list of {"text", "ids", "decoded"}, for <out>/tokenizer.model. Ids carry
no bos or eos. `decoded` differs from `text` where the tokenizer is lossy.
"""

import argparse
import json
from pathlib import Path

from sentencepiece import SentencePieceProcessor

TEXTS = [
    # Empty, spaces, line ends.
    "",
    " ",
    "  ",
    "          ",
    " leading",
    "trailing ",
    "  two  spaces  everywhere  ",
    "\t",
    "\tindented\n\t\ttwice",
    "\n",
    "\n\n\n",
    "line one\nline two\n",
    "carriage\r\nreturn\r\n",
    "old\rmac",
    " \n \t \r\n ",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space",
    "\u2581",
    "a literal \u2581 block \u2581\u2581",
    # Words and punctuation.
    "a",
    "In the beginning God created the heaven and the earth.",
    "The quick brown fox jumps over the lazy dog",
    "THE QUICK BROWN FOX",
    "CamelCase snake_case kebab-case dotted.name",
    "don't can't won't it's",
    "\"quoted\" 'single' `back` (round) [square] {curly} <angle>",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~\\",
    "...!!!???---___",
    "The pass key is 48213. Remember it. 48213 is the pass key.",
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 6,
    "x" * 300,
    "ab" * 150,
    "https://example.org/a/path?query=1&other=%20#fragment",
    "int main(void) {\n    return 0;  /* nothing */\n}\n",
    "{\"key\": [1, 2.5, null, true]}",
    # Digits.
    "0",
    "12345",
    "3.14159 1,000,000 0x1F 1e-5 2024-01-31",
    "00000000",
    "\u0661\u0662\u0663 \u00bd \u2167",
    # Latin beyond ASCII, composed and decomposed.
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9",
    "cafe\u0301 nai\u0308ve",
    "Stra\u00dfe \u00c6sir \u0141\u00f3d\u017a \u0130stanbul",
    "Vi\u1ec7t Nam \u0111\u1eb9p",
    "a\u0300\u0301\u0302\u0303\u0304 stacked marks",
    "\ufb01ne \ufb02ow \uff26\uff35\uff2c\uff2c",
    # Other scripts.
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "mixed \u4e2d\u6587 and English \u6df7\u5408",
    "\U00020000\U0002a6d6",
    # Emoji and symbols.
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 \u2764\ufe0f",
    "\u2200x\u2208\u211d: x\u00b2 \u2265 0 \u2192 \u221e",
    "\U0001d400\U0001d401 \U00010348",
    # Controls and oddities that are still valid UTF-8.
    "\x01\x02\x1b[31mred\x1b[0m\x7f",
    "\u0085\u2028\u2029",
    "zero\u200bwidth\u200djoin\ufeffbom",
    "\ufeffstarts with bom",
    "\u202eright to left\u202c",
    "\ufffd\uffff\U0010ffff\ue000",
    # Text that looks like special or byte pieces.
    "<s>",
    "</s>",
    "<unk>",
    "<0x41><0x0A>",
    "<s> in the middle </s> of text",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder that holds tokenizer.model")
    out = parser.parse_args().out

    tokenizer = SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (out / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="ascii")
    lossy = sum(case["text"] != case["decoded"] for case in cases)
    print(f"{len(cases)} strings, {lossy} of them not restored exactly")


if __name__ == "__main__":
    main()
