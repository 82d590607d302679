"""The tables and pictures of docs/results.md, measured with the bundled model: prints the tables and writes the pictures
into docs/results/. Some ten minutes on two cores."""
import argparse
import pathlib

from demo import MODEL, TEXT
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent

STRATEGIES = ["full", "truncation", "sliding_window", "streaming", "lm_infinite",
              "lm_infinite:top_tokens=5,top_from_layer=0", "long_heads", "rerope",
              "full+dynamic_ntk", "full+ntk:factor=8", "full+yarn:factor=8", "full+linear:factor=8"]
LONG_HEADS = ["long_heads", "long_heads:drop_first_chunk=true", "long_heads:order=last", "long_heads:order=random",
              "long_heads:share=layer", "long_heads:share=layers", "long_heads:scorer=mean_key",
              "long_heads:scorer=quest", "long_heads:scorer=representatives",
              "long_heads:attention_length=64,begin_selective_length=64",
              "long_heads:attention_length=128,begin_selective_length=128",
              "long_heads:chunk_size=32", "long_heads:chunk_size=64",
              "long_heads:prompt_skips_self=true,decode_boundary=true"]
SCORERS = ["long_heads", "long_heads:scorer=mean_key", "long_heads:scorer=quest", "long_heads:scorer=representatives"]
LM_INFINITE = ["lm_infinite", "lm_infinite:distance_limit=2147483648", "lm_infinite:num_sinks=0",
               "lm_infinite:num_sinks=1", "lm_infinite:num_sinks=4", "lm_infinite:num_sinks=50",
               "lm_infinite:window=128", "full"]
TOP = [f"lm_infinite:top_tokens={k},top_from_layer={h},top_distance={d}"
       for k, h, d in [(1, 0, 128), (5, 0, 128), (20, 0, 128), (50, 0, 128), (5, 1, 128), (5, 2, 128), (5, 3, 128),
                       (5, 0, 64), (5, 0, 255)]]
SCHEMES = ["full", "full+linear:factor=8", "full+ntk:factor=8", "full+ntk_by_parts:factor=8", "full+yarn:factor=8",
           "full+dynamic_ntk:length=8192", "full+abf:base=80000", "full+entropy_abf:base=80000", "rerope",
           "rerope:scale_logits=true", "streaming", "sliding_window", "lm_infinite", "long_heads"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/results")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=[], help="parts: passkey, long_heads, top, perplexity, needle, coverage")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)

    def picture(name):
        return ["--picture", args.out / f"{name}.svg"]

    with RunningServer(args.bin, MODEL, "--kv-bytes=4000000000") as server:
        def folio(title, *command):
            print(f"\n## {title}\n\nfolio {' '.join(map(str, command))}\n", flush=True)
            done = server.folio(*command)
            print(done.stdout + done.stderr[-400:], flush=True)

        trials = ["--seed", 1, "--concurrency", 2]
        excerpt = args.out / "excerpt.txt"
        excerpt.write_text(TEXT.read_text()[:24000])
        parts = {
            "perplexity": lambda: [
                folio("Perplexity under LM-Infinite and its ablations", "eval", "perplexity", "--text", excerpt,
                      "--strategies", *LM_INFINITE, *picture("perplexity_lm_infinite")),
                folio("Perplexity by strategy and position scheme", "eval", "perplexity", "--text", excerpt,
                      "--strategies", *SCHEMES, *picture("perplexity_schemes"))],
            "passkey": lambda: folio("Pass key by strategy", "eval", "passkey", "--trials", args.trials, *trials,
                                     "--lengths", "1,2,4,8,16", "--strategies", *STRATEGIES, *picture("passkey")),
            "long_heads": lambda: folio("Pass key, ablations of LongHeads", "eval", "passkey", "--trials", args.trials, *trials,
                                        "--lengths", "1,4,16", "--strategies", *LONG_HEADS, *picture("passkey_long_heads")),
            "top": lambda: folio("Pass key, middle tokens of LM-Infinite", "eval", "passkey", "--trials", args.trials, *trials,
                                 "--lengths", "2,8", "--strategies", *TOP),
            "coverage": lambda: folio("What the heads choose", "eval", "coverage", "--trials", args.trials, *trials,
                                      "--lengths", "4,16,64", "--filler", TEXT, "--strategies", *SCORERS,
                                      *picture("coverage")),
            "needle": lambda: folio("Needle by depth and length", "eval", "needle", "--trials", 4, "--depths", 10, *trials,
                                    "--filler", TEXT, "--lengths", "1,4,16,64", "--strategies", "lm_infinite", "long_heads",
                                    *picture("needle")),
        }
        for name in args.only or parts:
            parts[name]()
        excerpt.unlink()


if __name__ == "__main__":
    main()
