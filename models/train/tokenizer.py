"""Trains the SentencePiece tokenizer (BPE, 1024 pieces, byte fallback).

usage: tokenizer.py CORPUS.json OUTPUT_PREFIX
"""
import json
import random
import sys

import sentencepiece

import tasks

VOCAB_SIZE = 1024


def main():
    with open(sys.argv[1]) as file:
        corpus = json.load(file)
    # A little of the task sentences, so that their words become pieces.
    generator = random.Random(1)
    sentences = corpus["bible"] + corpus["jargon"]
    for _ in range(300):
        key = generator.randint(1, 99999)
        name = generator.choice(tasks.NAMES)
        sentences += [tasks.TASK, " ".join(tasks.GRASS), tasks.needle(name, key),
                      f"{tasks.question(name)} {key}", tasks.record("king", key)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=sys.argv[2], vocab_size=VOCAB_SIZE,
        model_type="bpe", byte_fallback=True, split_digits=True, character_coverage=0.99999,
        normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, max_sentence_length=20000, num_threads=2,
        minloglevel=1)


if __name__ == "__main__":
    main()
