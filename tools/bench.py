"""Speed of the engine on a synthetic TinyLlama-1.1B (bf16), beside this machine's memory bandwidth, as a table."""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--preset", default="tinyllama-1.1b")
    parser.add_argument("--depths", default="0,2048,32768")
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    model = ROOT / "build" / "models" / args.preset
    if not (model / "config.json").exists():
        subprocess.run([f"{args.bin}/folio-make-model", f"--preset={args.preset}", f"--output={model}"], check=True)
    sys.exit(subprocess.run([f"{args.bin}/folio-bench", f"--model={model}", f"--threads={args.threads}",
                             f"--depths={args.depths}"]).returncode)


if __name__ == "__main__":
    main()
