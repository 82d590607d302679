"""Where prometheus and promtool are: unpacked by cmake/fetch_prometheus.sh, or installed."""
import os
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build/deps/prometheus/usr/bin"
WHERE_FROM = "run cmake/fetch_prometheus.sh build/deps/prometheus"


def find(tool):
    """The path of the program, or None."""
    return shutil.which(tool, path=f"{UNPACKED}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
