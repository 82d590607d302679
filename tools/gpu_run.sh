#!/bin/sh
# Checks and measures the CUDA backend on a machine with an NVIDIA GPU (driver R580 or newer, cuBLAS 13). Lies in the folder
# that ./dev gpu-bundle makes, as run.sh.   usage: run.sh [--dry-run] [OUT]   OUT: folder for results (default: results)
set -u
here=$(cd "$(dirname "$0")" && pwd)
dry=0
[ "${1:-}" = --dry-run ] && dry=1 && shift
out=${1:-$here/results}
mkdir -p "$out"
export FOLIO_TEST_DATA="$here/tests"
# The GPU machine's own CUDA libraries; everything else that Debian 12 has and it may not is in lib/.
export LD_LIBRARY_PATH="$here/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib"
# Where no toolkit is installed, cuBLAS may have come with a Python package.
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
for library in "$packages"/nvidia/*/lib/libcublasLt.so.13; do
  [ -e "$library" ] && LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$(dirname "$library")"
done
model=$here/models/folio-tiny
summary=$out/summary.json
failed=0

row() { printf '%-34s %s\n' "$1" "$2"; }
record() { # name result
  row "$1" "$2" >>"$out/table"
  printf '{"check": "%s", "result": "%s"}\n' "$1" "$2" >>"$summary"
}
: >"$out/table"
: >"$summary"

check() { # name command...
  name=$1
  shift
  if [ "$dry" = 1 ]; then
    record "$name" "would run: $(basename "$1")"
    return
  fi
  "$@" >"$out/$name.log" 2>&1
  code=$?
  case $code in
    0) record "$name" passed ;;
    77) record "$name" "skipped: $(grep -m 1 SKIPPED "$out/$name.log" | tr -d '"')" ;;
    *) record "$name" "FAILED ($code), see $name.log" && failed=1 ;;
  esac
}

starts() { # every program must find its libraries here
  for program in folio folio-server folio-device-bench folio-loadtest cuda_tests; do
    "$here/bin/$program" --help >"$out/start-$program.log" 2>&1
    if [ $? -lt 126 ]; then # 126, 127: the loader's
      record "start $program" passed
    else
      record "start $program" "FAILED: $(tail -n 1 "$out/start-$program.log" | tr -d '"')" && failed=1
    fi
  done
}

# The speed of a Llama-2-7B shape beside the ceilings of this device, then transformers on the same shape.
speed() {
  if [ "$dry" = 1 ]; then
    record "speed" "would run: folio-device-bench, transformers_bench.py"
    return
  fi
  rm -f "$out/device-bench.json"
  if "$here/bin/folio-device-bench" --json="$out/device-bench.json" >"$out/device-bench.txt" 2>"$out/device-bench.log"; then
    while read -r line; do row "speed" "$line" >>"$out/table"; done <"$out/device-bench.txt"
    record "speed" "$(grep -c MISSED "$out/device-bench.txt") goals missed, $(grep -c ': met' "$out/device-bench.txt") met"
  else
    record "speed" "FAILED: $(tail -n 1 "$out/device-bench.log" | tr -d '"')" && failed=1
  fi
  if python3 -c 'import torch, transformers; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 "$here/transformers_bench.py" --figures "$out/device-bench.json" --out "$out/transformers.json" \
      >"$out/transformers.txt" 2>"$out/transformers.log" || failed=1
    while read -r line; do row "transformers" "$line" >>"$out/table"; done <"$out/transformers.txt"
  else
    record "transformers" "skipped: no torch with a GPU and transformers here"
  fi
}

# Seconds from the start of a server with 7B synthetic weights until it is ready, then streams of clients over gRPC.
serve_synthetic() {
  if [ "$dry" = 1 ]; then
    record "serve synthetic 7B" "would run: folio-server, folio-loadtest"
    return
  fi
  start=$(date +%s.%N)
  "$here/bin/folio-server" --model synthetic:llama-2-7b --device cuda --listen 127.0.0.1:50952 --metrics-listen off \
    >"$out/server-synthetic.log" 2>&1 &
  server=$!
  until "$here/bin/folio" --server 127.0.0.1:50952 info >"$out/info-synthetic.txt" 2>/dev/null; do
    kill -0 "$server" 2>/dev/null || break
  done
  record "serving 7B after" "$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f s (goal 20)", $1 - $2}')"
  "$here/bin/folio-loadtest" --server 127.0.0.1:50952 --concurrency 16 --num-requests 64 --warmup 5 \
    --strategies full:1,lm_infinite:1,long_heads:1 --prompt-tokens 1024:0.5,8192:0.5 --output-tokens 128 --sampled-fraction 0.3 >"$out/loadtest.txt" 2>"$out/loadtest.log" || failed=1
  tail -n 8 "$out/loadtest.txt" | while read -r line; do row "streams" "$line" >>"$out/table"; done
  kill "$server" 2>/dev/null
  wait "$server"
}

# A pass key in a text 32 times as long as the model was trained on, asked for over gRPC on either device.
serve() { # device
  if [ "$dry" = 1 ]; then
    record "serve $1" "would run: folio-server, folio eval passkey"
    return
  fi
  "$here/bin/folio-server" --model "$model" --device "$1" --listen 127.0.0.1:50951 --metrics-listen off >"$out/server-$1.log" 2>&1 &
  server=$!
  "$here/bin/folio" --server 127.0.0.1:50951 eval passkey --tokens 8192 --trials 10 \
    --strategies long_heads lm_infinite full >"$out/passkey-$1.txt" 2>"$out/passkey-$1.log" || failed=1
  kill "$server" 2>/dev/null
  wait "$server"
  grep -E '^(long_heads|lm_infinite|full) ' "$out/passkey-$1.txt" | while read -r line; do record "passkey $1" "$line"; done
}

# The parity tests of two shapes under NVIDIA's checkers.
sanitize() { # tool
  if ! command -v compute-sanitizer >/dev/null 2>&1; then
    record "compute-sanitizer $1" "skipped: there is no compute-sanitizer here"
    return
  fi
  check "compute-sanitizer-$1" compute-sanitizer --tool "$1" --error-exitcode 99 "$here/bin/cuda_tests" \
    "--gtest_filter=*VerbParity*:*AttentionParity*page16:*AttentionParity*128_mha"
}

starts
check cuda_tests "$here/bin/cuda_tests" "--gtest_filter=$(cat "$here/filter")"
sanitize memcheck
sanitize racecheck
speed
serve_synthetic
serve cuda
serve cpu
cat "$out/table"
exit $failed
