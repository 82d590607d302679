#!/bin/sh
# Trains folio-tiny from nothing and measures it: ./train.sh WORK_DIR. See README.md for what it needs and takes.
# Writes WORK_DIR/folio-tiny and, for comparison, WORK_DIR/folio-tiny-noaux (without the auxiliary loss).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?usage: train.sh WORK_DIR}
mkdir -p "$work"
[ -d "$work/venv" ] || python3 -m venv "$work/venv"
python="$work/venv/bin/python"
"$python" -m pip install -q -r "$here/requirements.txt"

# Without these glibc returns every activation to the system and faults it in again.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0

"$python" "$here/corpus.py" "$work/corpus.json"
"$python" "$here/tokenizer.py" "$work/corpus.json" "$work/tokenizer"

train() { "$python" -u "$here/train.py" --corpus "$work/corpus.json" --tokenizer "$work/tokenizer.model" "$@"; }
export_model() { "$python" "$here/export.py" "$1" "$work/tokenizer.model" "$2"; }
evaluate() { "$python" "$here/evaluate.py" "$1" "$work/corpus.json"; }

train --output "$work/aux"
export_model "$work/aux/final.pt" "$work/folio-tiny"
evaluate "$work/folio-tiny"

train --output "$work/noaux" --start "$work/aux/step-1100.pt" --aux 0
export_model "$work/noaux/final.pt" "$work/folio-tiny-noaux"
evaluate "$work/folio-tiny-noaux"
