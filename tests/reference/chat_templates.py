"""Small tokenizers of the forms that chat models have, with chat templates of the forms in use, and what transformers makes of conversations.

Writes <golden>/chat/<format>/{tokenizer.json, tokenizer_config.json, cases.json}. A case has system (null: none),
history (pairs of question and answer), question, document (null: none) and the ids of apply_chat_template with
add_generation_prompt; a document stands in front of the first question, an empty line between them. The templates are written
here, each to render what the checkpoints of its name do for plain conversations.
"""

import argparse
import json
from pathlib import Path

from metaspace import of_characters
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = Path(__file__).parent.parent.parent / "models" / "texts" / "ezekiel.txt"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

TURNS = "{% for message in messages %}"
END = "{% endfor %}"
ASK = "{% if add_generation_prompt %}"
FIRST_SYSTEM = ("{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
                "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}")

TEMPLATES = {
    "llama2": FIRST_SYSTEM + "{% for message in turns %}{% if loop.first and system %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'].strip() %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}" + END,
    "llama3": TURNS + "{% set text = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{{ bos_token }}{% endif %}{{ text }}" + END +
    ASK + "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "llama3.1": "{{ bos_token }}" + FIRST_SYSTEM + "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{{ 'Cutting Knowledge Date: December 2023\\n' + 'Today Date: 26 Jul 2024\\n\\n' }}{{ system | trim + '<|eot_id|>' }}"
    "{% for message in turns %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    "message['content'] | trim + '<|eot_id|>' }}" + END +
    ASK + "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "chatml": TURNS + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}" + END +
    ASK + "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "chatml_default": "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + TURNS +
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}" + END +
    ASK + "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "mistral": "{{ bos_token }}" + FIRST_SYSTEM + "{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}" + END,
    "mistral-v3": "{{ bos_token }}" + FIRST_SYSTEM + "{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}" + END,
    "gemma": "{{ bos_token }}" + FIRST_SYSTEM + "{% for message in turns %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + (system + '\\n\\n' if loop.first and system else '') + message['content'] | trim + "
    "'<end_of_turn>\\n' }}" + END + ASK + "{{ '<start_of_turn>model\\n' }}{% endif %}",
    "phi3": TURNS + "{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% else %}{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}" + END +
    ASK + "{{ '<|assistant|>\\n' }}{% endif %}",
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% else %}\n"
    "{{ '<|assistant|>\\n' + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "vicuna": "{{ bos_token }}" + FIRST_SYSTEM + "{% if not system %}{% set system = 'A chat between a curious user and an "
    "artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' "
    "%}{% endif %}{{ system + ' ' }}{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ 'USER: ' + message['content'] + ' ' }}{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}" + END +
    ASK + "{{ 'ASSISTANT:' }}{% endif %}",
}

# system, history, question, document
CONVERSATIONS = [
    (None, [], "What is the pass key?", None),
    ("Answer in one word.", [], "  Who speaks?\n", None),
    (None, [("Who are you?", "A voice.")], "And where?", None),
    ("Be brief.\n", [("One?", "1"), (" Two? ", " 2 ")], "Three?", None),
    ("Be brief.", [], "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600", None),
    ("Read.", [], "Who came?", "In the thirtieth year, in the fourth month.\nNow it came to pass the word"),
    (None, [("Who came?", "The word.")], "When?", "Now it came to pass in the thirtieth year"),
]


def of_bytes(pattern: str, special: list[str], **model) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT.read_text()], trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_of(name: str) -> tuple[Tokenizer, str | None, str]:
    """With the names of the beginning and the end."""
    if name.startswith("llama3"):
        names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        return of_bytes(LLAMA3, names, ignore_merges=True), names[0], "<|eot_id|>"
    if name.startswith("chatml"):
        return of_bytes(QWEN2, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]), None, "<|im_end|>"
    special = {
        "gemma": [AddedToken("<start_of_turn>"), AddedToken("<end_of_turn>")],
        "mistral-v3": [AddedToken("[INST]"), AddedToken("[/INST]")],
        "phi3": [AddedToken(f"<|{role}|>", rstrip=True) for role in ("system", "user", "assistant", "end")],
    }.get(name, [])
    prefix = {"gemma": "never", "mistral-v3": "first"}.get(name, "always")
    return of_characters(special, prefix), "<s>", "</s>"


def messages(system, history, question, document) -> list[dict]:
    out = [] if system is None else [{"role": "system", "content": system}]
    questions = [q for q, _ in history] + [question]
    if document is not None:
        questions[0] = document + "\n\n" + questions[0]
    for i, text in enumerate(questions):
        out.append({"role": "user", "content": text})
        if i < len(history):
            out.append({"role": "assistant", "content": history[i][1]})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    golden = parser.parse_args().golden
    for name, template in TEMPLATES.items():
        directory = golden / "chat" / name
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer, bos, eos = tokenizer_of(name)
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "chat_template": template}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        fast = PreTrainedTokenizerFast.from_pretrained(str(directory))
        cases = []
        for system, history, question, document in CONVERSATIONS:
            ids = fast.apply_chat_template(messages(system, history, question, document), add_generation_prompt=True)
            cases.append({"system": system, "history": history, "question": question, "document": document, "ids": ids})
        (directory / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
        print(f"{name}: {len(fast)} tokens, {len(cases)} conversations")


if __name__ == "__main__":
    main()
