"""A server without tiers is as fast as before there were any: folio-bench beside that of the last commit without them."""
import bench_commits
import interleaved
from larger import report

BEFORE = "beec505"
LEAST = 0.99
FLAGS = [f"--model={bench_commits.MODEL}", "--strategies=full,lm_infinite,long_heads", "--depths=0,32768", "--prefill_tokens=64",
         "--rounds=1"]


def measure(bin_dir, _directory, _limits, rounds=5):
    try:
        lines, slower = bench_commits.compare([bench_commits.build(BEFORE), bin_dir / "folio-bench"], FLAGS, rounds, LEAST)
    except (bench_commits.Unusable, interleaved.BenchFailed) as error:
        return report("resident", "not measured", [str(error)])
    print("\n".join(lines))
    return report("resident", f"A: {BEFORE}, before the tiers, B: this tree; goal {LEAST}", slower)
