"""Small tokenizers of the form that SentencePiece models are converted to."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = Path(__file__).parent.parent.parent / "models" / "texts" / "ezekiel.txt"
SPACE = "\u2581"


def of_characters(special: list[AddedToken], prefix: str) -> Tokenizer:
    """As a SentencePiece model is converted; `prefix`: where a text gets a space in front."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([TEXT.read_text()], trainers.BpeTrainer(vocab_size=250, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [name for name in learned["vocab"] if name not in names]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)},
                                     merges=[tuple(merge) for merge in learned["merges"]], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        replace = normalizers.Replace(" ", SPACE)
        tokenizer.normalizer = replace if prefix == "never" else normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    strip = [] if prefix == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer
