"""LoRA adapters for the checkpoints of hf_families.py, as PEFT saves them, and the logits of the
checkpoints with these adapters merged into their weights, by PEFT and transformers.

A case is adapter_config.json and adapter_model.safetensors, and golden.safetensors with the first
NUM_TOKENS tokens of the checkpoint's own golden file and their logits. All is float32, attention
eager.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

NUM_TOKENS = 40
LLAMA_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# The checkpoint and the LoraConfig of a case.
CASES = {
    "mistral_all": ("mistral", {"r": 4, "lora_alpha": 8, "target_modules": LLAMA_LINEARS}),
    # The same numbers of other ranks, and another scale.
    "mistral_patterns": ("mistral", {
        "r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"layers.1.self_attn.q_proj": 9}, "alpha_pattern": {"v_proj": 2.5}}),
    "mistral_one_layer": ("mistral", {"r": 2, "lora_alpha": 2, "layers_to_transform": [1],
                                      "target_modules": ["k_proj", "mlp.down_proj"]}),
    "qwen2_bf16": ("qwen2", {"r": 3, "lora_alpha": 5, "target_modules": LLAMA_LINEARS}),
    "neox_all": ("neox", {"r": 4, "lora_alpha": 4, "target_modules": [
        "query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}),
    "gptj_all": ("gptj", {"r": 4, "lora_alpha": 8, "target_modules": [
        "q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]}),
    "phi3_partial": ("phi3_partial_tied", {"r": 4, "lora_alpha": 8, "target_modules": [
        "qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "mpt_all": ("mpt", {"r": 2, "lora_alpha": 4, "target_modules": [
        "Wqkv", "out_proj", "up_proj", "down_proj"]}),
    "gemma2_all": ("gemma2", {"r": 2, "lora_alpha": 4, "target_modules": LLAMA_LINEARS}),
    "mixtral_attention": ("mixtral", {"r": 2, "lora_alpha": 4, "target_modules": [
        "q_proj", "k_proj", "v_proj", "o_proj"]}),
}


def set_random(model, seed: int) -> None:
    """Products of A and B that change the logits a lot; PEFT begins with B = 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        value = torch.randn(parameter.shape, generator=generator)
        value = value * (1.0 / parameter.shape[1] ** 0.5 if "lora_A" in name else 0.25)
        parameter.data.copy_(value.bfloat16().float())


def save(model, case: str, base: str, directory: Path) -> None:
    dtype = torch.bfloat16 if case.endswith("bf16") else torch.float32
    tensors = {name: value.to(dtype).contiguous()
               for name, value in get_peft_model_state_dict(model).items()}
    save_file(tensors, directory / "adapter_model.safetensors")
    model.peft_config["default"].save_pretrained(directory)
    # The config has sets, whose order changes, and the folder of the checkpoint.
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", type=Path, help="what hf_families.py wrote")
    parser.add_argument("out", type=Path, help="folder for the cases, e.g. tests/golden/adapters")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case_idx, (case, (base, fields)) in enumerate(CASES.items()):
        directory = arguments.out / case
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        model = AutoModelForCausalLM.from_pretrained(
            arguments.families / base, attn_implementation="eager", dtype=torch.float32).eval()
        tokens = load_file(arguments.families / base / "golden.safetensors")["tokens"][:NUM_TOKENS]
        with torch.no_grad():
            before = model(tokens[None].long(), use_cache=False).logits[0]
            adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
            set_random(adapted, seed=6000 + case_idx)
            save(adapted, case, base, directory)
            merged = adapted.merge_and_unload()
            logits = merged(tokens[None].long(), use_cache=False).logits[0].contiguous()
        save_file({"tokens": tokens.contiguous(), "logits": logits},
                  directory / "golden.safetensors")
        print(f"{case:20} logits {tuple(logits.shape)}, changed by up to "
              f"{(logits - before).abs().max():.2f}")


if __name__ == "__main__":
    main()
