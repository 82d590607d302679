"""Builds the training text: the King James Bible and the Jargon File, both from Debian packages.

usage: corpus.py OUTPUT.json
Needs the packages bible-kjv, bible-kjv-text and jargon-text. Ezekiel and one stretch of the Jargon File are held out.
"""
import gzip
import json
import re
import subprocess
import sys

HELD_OUT_BOOK = "Eze"
HELD_OUT_JARGON = (0.60, 0.72)
JARGON = "/usr/share/doc/jargon-text/jargon.txt.gz"


def bible_verses():
    """[(book, verse text)] in order."""
    dump = subprocess.run(["bible", "-f", "-l", "0"], input=b"gen1:1-rev22:21\n",
                          capture_output=True, check=True).stdout.decode("latin-1")
    line = re.compile(r"^(\d?[A-Za-z]+)\d+:\d+ (.+)$")
    matches = (line.match(text) for text in dump.splitlines())
    return [(m.group(1), m.group(2).strip()) for m in matches if m]


def jargon_paragraphs():
    """Paragraphs of prose, in ASCII."""
    with gzip.open(JARGON, "rt", encoding="utf-8", errors="replace") as file:
        blocks = re.split(r"\n\s*\n", file.read())
    table = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "—": "-", "–": "-"})
    paragraphs = []
    for block in blocks:
        text = re.sub(r"\s+", " ", block).strip().translate(table)
        text = text.encode("ascii", "ignore").decode()
        letters = sum(c.isalpha() or c == " " for c in text)
        if len(text) > 60 and letters > 0.85 * len(text):
            paragraphs.append(text)
    return paragraphs


def main():
    verses = bible_verses()
    jargon = jargon_paragraphs()
    low, high = (int(share * len(jargon)) for share in HELD_OUT_JARGON)
    corpus = {
        "bible": [text for book, text in verses if book != HELD_OUT_BOOK],
        "jargon": jargon[:low] + jargon[high:],
        "held_out_bible": [text for book, text in verses if book == HELD_OUT_BOOK],
        "held_out_jargon": jargon[low:high],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(corpus, file)
    for name, texts in corpus.items():
        print(f"{name}: {len(texts)} texts, {sum(map(len, texts))} characters")


if __name__ == "__main__":
    main()
