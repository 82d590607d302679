#!/bin/sh
# Regenerates everything under tests/golden from fixed seeds, then checks it.
# VENV names the Python environment to use; it is created from requirements.txt when absent.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
golden=$(cd "$here/.." && pwd)/golden
venv=${VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/folio/reference-venv}

[ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement "$here/requirements.txt"

# One thread: sums are then taken in one order.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export PYTHONDONTWRITEBYTECODE=1

"$venv/bin/python3" "$here/hf_llama.py" "$golden/llama"
"$venv/bin/python3" "$here/hf_families.py" "$golden/families"
"$venv/bin/python3" "$here/lora_adapters.py" "$golden/families" "$golden/adapters"
"$venv/bin/python3" "$here/strategies.py" "$golden"
"$venv/bin/python3" "$here/attention_cases.py" "$golden"
"$venv/bin/python3" "$here/rope_tables.py" "$golden"
"$venv/bin/python3" "$here/tokenization.py" "$golden/tokenizer"
"$venv/bin/python3" "$here/bpe_tokenization.py" "$golden"
"$venv/bin/python3" "$here/chat_templates.py" "$golden"
"$venv/bin/python3" "$here/gguf_models.py" "$golden"
"$venv/bin/python3" "$here/quantised_models.py" "$golden"
"$venv/bin/python3" -m pytest -q -p no:cacheprovider "$here/vectors_test.py"
