"""Builds the training text: several kinds of text from Debian packages, without what is held out for measurements.

usage: corpus.py OUTPUT.json HELD_OUT.txt...
A paragraph that shares SHINGLE words in a row with a held-out text is left out, so that none is there in part or in
another edition. Writes {kind: [document = [paragraph, ...], ...]}.
"""
import json
import random
import re
import sys

import sources

SHINGLE = 8
KIND_CHARACTERS = 2_500_000
MAX_DOCUMENT = 200_000


def shingles(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i:i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}


def chosen(documents, held_out, seed):
    """Stretches of documents drawn at random up to KIND_CHARACTERS, without what is held out; and how much that was."""
    generator = random.Random(seed)
    generator.shuffle(documents)
    kept, characters, dropped = [], 0, 0
    for document in documents:
        stretch, size = [], 0
        begin = 0
        if sum(map(len, document)) > MAX_DOCUMENT:
            begin = generator.randrange(len(document) // 2)
        for paragraph in document[begin:]:
            if shingles(paragraph) & held_out:
                dropped += 1
                continue
            stretch.append(paragraph)
            size += len(paragraph)
            if size >= MAX_DOCUMENT:
                break
        if stretch:
            kept.append(stretch)
            characters += size
        if characters >= KIND_CHARACTERS:
            break
    return kept, characters, dropped


def main():
    held_out = set()
    for path in sys.argv[2:]:
        held_out |= shingles(sources.read(path))
    corpus = {}
    for kind, collect in sources.KINDS.items():
        corpus[kind], characters, dropped = chosen(collect(), held_out, seed=0)
        print(f"{kind}: {len(corpus[kind])} documents, {characters} characters; "
              f"{dropped} paragraphs left out that share {SHINGLE} words with a held-out text")
    with open(sys.argv[1], "w") as file:
        json.dump(corpus, file)


if __name__ == "__main__":
    main()
