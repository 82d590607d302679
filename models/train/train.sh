#!/bin/sh
# Trains folio-tiny from nothing and measures it: ./train.sh WORK_DIR. See README.md for what it needs and takes.
# Writes WORK_DIR/folio-tiny and, for comparison, WORK_DIR/folio-tiny-noaux (the last phase without the auxiliary
# losses). A second run with the same WORK_DIR does what the first left undone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?usage: train.sh WORK_DIR}
texts="$here/../texts"
mkdir -p "$work"
[ -d "$work/venv" ] || python3 -m venv "$work/venv"
python="$work/venv/bin/python"
"$python" -m pip install -q -r "$here/requirements.txt"

# One thread adds up in one order, so that the same seed gives the same weights; the two last phases use both cores.
export OMP_NUM_THREADS=1
# Without these glibc returns every activation to the system and faults it in again.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456

[ -e "$work/corpus.json" ] || "$python" "$here/corpus.py" "$work/corpus.json" "$texts"/*.txt
[ -e "$work/tokenizer.model" ] || "$python" "$here/tokenizer.py" "$work/corpus.json" "$work/tokenizer.model"

train() { "$python" -u "$here/train.py" --corpus "$work/corpus.json" --tokenizer "$work/tokenizer.model" "$@"; }
finish() { # NAME [arguments of train.py]: the last phase, and its model as WORK_DIR/NAME
  name=$1
  shift
  [ -e "$work/$name.run/final.pt" ] || train --output "$work/$name.run" --start "$work/begin.run/step-500.pt" "$@"
  "$python" "$here/export.py" "$work/$name.run/final.pt" "$work/tokenizer.model" "$work/$name"
}

[ -e "$work/begin.run/step-500.pt" ] || train --output "$work/begin.run" --until 500
finish folio-tiny-noaux --aux 0 >"$work/folio-tiny-noaux.log" &
finish folio-tiny
wait $!

for model in folio-tiny folio-tiny-noaux; do
  echo "$model"
  OMP_NUM_THREADS=2 "$python" "$here/evaluate.py" "$work/$model" "$texts"/*.txt --lengths 1 4 16 --trials 10
done
