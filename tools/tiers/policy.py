"""Which slices stay in memory: hits beside those of the best that is possible, as tests/engine/eviction_policy_test.cc
finds them on what folio-tiny reads of a natural text."""
import re
import subprocess

from larger import report

GOAL = 0.87  # of the optimum, with room for 4 and 8 times what a step reads
ROOM = re.compile(r"room for (\d+) times as many: hits ([\d.]+), of the optimum ([\d.]+)")


def measure(bin_dir, _directory, _limits):
    test = subprocess.run([bin_dir / "engine_tests", "--gtest_filter=EvictionPolicy.*"], capture_output=True, text=True)
    rooms = ROOM.findall(test.stdout)
    faults = [f"{share} of the optimum with room for {times} times a step, the goal is {GOAL}"
              for times, _, share in rooms if float(share) < GOAL]
    if test.returncode != 0 or len(rooms) != 2:
        faults.append(f"the test ended with {test.returncode}")
    figures = "; ".join(f"room for {times} times a step: hits {float(hits):.2f}, {float(share):.2f} of the optimum"
                        for times, hits, share in rooms)
    return report("policy", f"{figures} (goal {GOAL})", faults)
