"""Trains the SentencePiece tokenizer (BPE, 2048 pieces, byte fallback).

usage: tokenizer.py CORPUS.json OUTPUT.model
"""
import io
import json
import random
import sys

import sentencepiece

import tasks

VOCAB_SIZE = 2048
# Characters of each kind of text that it sees.
SHARES = {"prose": 1_200_000, "legal": 600_000, "technical": 800_000, "code": 500_000, "tables": 300_000}


def sample(documents, characters, generator):
    texts = [text for document in documents for text in document]
    generator.shuffle(texts)
    for text in texts:
        if characters <= 0:
            return
        characters -= len(text)
        yield " ".join(text.split())


def main():
    with open(sys.argv[1]) as file:
        corpus = json.load(file)
    generator = random.Random(1)
    sentences = [text for kind, share in SHARES.items() for text in sample(corpus[kind], share, generator)]
    # A little of the task sentences, so that their words become pieces.
    for _ in range(300):
        key = generator.randint(1, 99999)
        name = generator.choice(tasks.NAMES)
        sentences += [tasks.TASK, " ".join(tasks.GRASS), tasks.needle(name, key),
                      f"{tasks.question(name)} {key}", tasks.record("king", key)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=VOCAB_SIZE,
        model_type="bpe", byte_fallback=True, split_digits=True, character_coverage=0.99999,
        normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, max_sentence_length=20000, num_threads=2,
        minloglevel=1)
    with open(sys.argv[2], "wb") as file:
        file.write(model.getvalue())


if __name__ == "__main__":
    main()
