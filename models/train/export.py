"""Writes a checkpoint as a Hugging Face directory. usage: export.py CHECKPOINT TOKENIZER.model OUTPUT_DIR"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file


def main():
    checkpoint, tokenizer, output = sys.argv[1:]
    state = torch.load(checkpoint, weights_only=True)
    os.makedirs(output, exist_ok=True)
    tensors = {f"model.{name}": value.float().contiguous() for name, value in state["model"].items()}
    save_file(tensors, os.path.join(output, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(output, "config.json"), "w") as file:
        json.dump(state["config"], file, indent=1)
        file.write("\n")
    shutil.copy(tokenizer, os.path.join(output, "tokenizer.model"))


if __name__ == "__main__":
    main()
