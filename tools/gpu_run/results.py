"""The lines of a run: written one by one, read again by a later run, packed in the end."""
import collections
import json
import pathlib
import tarfile
import threading
import time

ARCHIVE = "folio-gpu-results.tar.gz"
NO_GPU_CODE = 77
# What ends up as the status of a stage, the worst first.
WORST = ["failed", "timeout", "no gpu", "ok", "skipped"]


class Results:
    def __init__(self, folder, out, commit, again):
        """`folder` keeps lines and logs; `out`, if any, gets the lines and the archive too."""
        self.folder, self.commit = pathlib.Path(folder), commit
        self.out = pathlib.Path(out) if out else self.folder
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "results.jsonl"
        self.paths = {self.path.resolve(), (self.out / "results.jsonl").resolve()}
        self.before = [] if again else [line for line in self.lines() if line.get("commit") == commit]
        self.statuses = collections.defaultdict(list)
        self.lock = threading.Lock()

    def lines(self):
        """All lines; the last one may have been cut off."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return found

    def done(self, stage):
        """Names that succeeded before."""
        return {line["name"] for line in self.before if line["stage"] == stage and line["status"] == "ok"}

    def record(self, stage, name, status, **values):
        assert status in WORST, status
        line = {"stage": stage, "name": name, "status": status, **values,
                "commit": self.commit, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        text = json.dumps(line, ensure_ascii=False)
        with self.lock:
            for path in self.paths:
                with open(path, "a") as file:
                    file.write(text + "\n")
            self.statuses[stage].append(status)
        return line

    def end_stage(self, stage, seconds):
        counts = collections.Counter(self.statuses[stage])
        worst = next((status for status in WORST if counts[status]), "skipped")
        self.record(stage, stage, worst, seconds=round(seconds, 2), counts=dict(counts))
        print(f"{stage:<13} {worst:<8} {seconds:7.1f} s   " + ", ".join(f"{n} {s}" for s, n in counts.items()), flush=True)

    def archive(self):
        path = self.out / ARCHIVE
        with tarfile.open(path, "w:gz") as tar:
            tar.add(self.path, "results.jsonl") if self.path.exists() else None
            tar.add(self.logs, "logs")
        return path

    def summary(self):
        """What did not go well, one line each."""
        bad = [line for line in self.lines() if line["status"] in ("failed", "timeout") and line["stage"] in self.statuses
               and line["name"] != line["stage"]]
        return "\n".join(f"  {line['status']}: {line['name']}: {str(line.get('error', '')).strip()[:160]}"
                         for line in bad[-20:]) or "  nothing failed"

    def exit_code(self):
        all_statuses = [status for statuses in self.statuses.values() for status in statuses]
        if "failed" in all_statuses or "timeout" in all_statuses:
            return 1
        return NO_GPU_CODE if "no gpu" in all_statuses else 0
