#!/bin/sh
# Checks and measures the CUDA backend on a machine with an NVIDIA GPU. Lies in the folder that ./dev gpu-bundle makes.
# run.sh --help says more; docs/gpu.md says most.
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "run.sh: there is no python3 here" >&2; exit 1; }
exec python3 -B "$here/gpu_run" --bundle "$here" "$@"
