"""Runs every query of the Grafana dashboard and of the alert rules by a real Prometheus that scrapes a server at work."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
from unittest import mock

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/deploy")]
import prometheus_tools  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
MONITORING = ROOT / "deploy/components/monitoring"
RUNBOOK = ROOT / "docs/runbook.md"
PROMETHEUS = prometheus_tools.find("prometheus")
# Of the tokens "alpha" and "beta"; the second one may have one document.
TENANTS = {
    "a": {"token_sha256": ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]},
    "b": {"token_sha256": ["f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"], "max_documents": 1},
}
# What Grafana fills in.
VARIABLES = {"$pod": ".*", "$__rate_interval": "1m"}


def dashboard_queries():
    """[(title, query)] of all panels."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    for variable, value in VARIABLES.items():
        queries = [(title, query.replace(variable, value)) for title, query in queries]
    return queries


def alerts():
    rule = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())
    return [r for group in rule["spec"]["groups"] for r in group["rules"]]


def selectors(query):
    """The series of the server that a query reads, as selectors."""
    return sorted({name + labels for name, labels in re.findall(r"\b(folio_\w+)(\{[^}]*\})?", query)})


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    """Scrapes one server as if it were a pod."""

    def __init__(self, target):
        self.directory = tempfile.TemporaryDirectory(prefix="folio-prometheus-")
        folder = pathlib.Path(self.directory.name)
        scrape = {"job_name": "folio", "scrape_interval": "250ms", "scrape_timeout": "250ms",
                  "static_configs": [{"targets": [target], "labels": {"namespace": "test", "pod": "folio-0"}}]}
        (folder / "prometheus.yaml").write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.log_path = folder / "log"
        self.command = [PROMETHEUS, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
                        f"--web.listen-address={address}", "--log.level=warn"]

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait_for(self._ready, "Prometheus is ready", seconds=60)
        return self

    def _ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"prometheus did not start:\n{self.log_path.read_text()}")
        try:
            urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).close()
        except OSError:
            return False
        return True

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.directory.cleanup()

    def ask(self, query):
        """[(labels, value)] of an instant query; ValueError if it is wrong."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                data = json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]


@unittest.skipUnless(PROMETHEUS, f"no prometheus: {prometheus_tools.WHERE_FROM}")
class MonitoringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (folder / "tenants.json").write_text(json.dumps({"tenants": TENANTS}))
        for token in ("alpha", "beta"):
            (folder / token).write_text(token)
        cls.enterClassContext(mock.patch.dict(os.environ, {"FOLIO_TOKEN_FILE": str(folder / "alpha")}))
        cls.folder = folder
        # Nobody listens on port 1: spans are made and dropped.
        cls.server = cls.enterClassContext(RunningServer(BIN, MODEL, "--kv-bytes=200000000", "--otlp-endpoint=127.0.0.1:1",
                                                         f"--tenants={folder / 'tenants.json'}"))
        target = urllib.parse.urlparse(cls.server.metrics_url).netloc
        cls.prometheus = cls.enterClassContext(Prometheus(target))
        first = cls.server.folio("--token-file", folder / "beta", "upload", folder / "tenants.json", "--id", "first")
        assert first.returncode == 0, first.stderr
        # Counters show a rate once they have grown between two scrapes.
        for round_number in range(2):
            cls.work(round_number)
            wait_for(lambda: cls.scraped("folio_generation_tokens_total") == cls.tokens(), "the work is scraped", seconds=60)

    @classmethod
    def work(cls, round_number):
        """An upload, answers of some tokens, a call that is given up, and one of another tenant that is refused."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "text.txt")
            path.write_text(f"The sky is blue, {round_number}. " * 100)
            asked = cls.server.folio("ask", "--document", path, "--question", "What is the sky?", "--max-new-tokens", 8)
        assert asked.returncode == 0, asked.stderr
        late = cls.server.folio("ask", "--question", "Why?", "--max-new-tokens", 10000, "--timeout", 0.3)
        assert late.returncode == 7, late.stderr
        refused = cls.server.folio("--token-file", cls.folder / "beta", "upload", cls.folder / "tenants.json", "--id", f"b{round_number}")
        assert "tenant has its limit" in refused.stderr, refused.stderr

    @classmethod
    def tokens(cls):
        return sum(value for series, value in cls.server.metrics().items() if series.startswith("folio_generation_tokens_total"))

    @classmethod
    def scraped(cls, metric):
        return sum(value for _, value in cls.prometheus.ask(metric))

    def assert_has_data(self, query):
        samples = self.prometheus.ask(query)
        self.assertTrue(samples, f"no data: {query}")
        self.assertEqual([s for s in samples if s[1] != s[1]], [], f"not a number: {query}")

    def test_every_panel_shows_data(self):
        queries = dashboard_queries()
        self.assertGreater(len(queries), 20)
        for title, query in queries:
            with self.subTest(title):
                self.assert_has_data(query)

    def test_panels_show_what_happened(self):
        shown = {}
        for title, query in dashboard_queries():
            shown.setdefault(title, []).extend(self.prometheus.ask(query))
        phases = {labels["phase"]: value for labels, value in shown["Given up"]}
        self.assertGreater(sum(phases.values()), 0)
        self.assertGreater(min(value for _, value in shown["Tokens in a step"]), 0)
        self.assertGreater(dict((labels["state"], value) for labels, value in shown["Documents"])["ready"], 0)
        self.assertEqual({labels["tenant"]: value for labels, value in shown["Documents of tenants"]}, {"a": 2, "b": 1})
        refused = [labels for labels, value in shown["Refused calls of tenants"] if value > 0]
        self.assertEqual(refused, [{"tenant": "b", "reason": "TOO_MANY_DOCUMENTS"}])

    def test_every_alert_reads_series_that_are_there(self):
        for alert in alerts():
            with self.subTest(alert["alert"]):
                self.prometheus.ask(alert["expr"])  # parses and runs
                read = selectors(alert["expr"])
                self.assertTrue(read)
                for selector in read:
                    self.assert_has_data(selector)

    def test_nothing_is_alerted_while_all_is_well(self):
        for alert in alerts():
            with self.subTest(alert["alert"]):
                self.assertEqual(self.prometheus.ask(alert["expr"]), [])

    def test_a_wrong_query_is_noticed(self):
        with self.assertRaises(ValueError):
            self.prometheus.ask("rate(folio_engine_steps_total)")
        with self.assertRaises(AssertionError):
            self.assert_has_data("folio_no_such_metric")


class RunbookTest(unittest.TestCase):
    def test_each_alert_says_where_its_page_is(self):
        sections = set(re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.M))
        self.assertEqual(sections, {alert["alert"] for alert in alerts()})
        for alert in alerts():
            self.assertEqual(alert["annotations"]["runbook"], f"docs/runbook.md#{alert['alert'].lower()}")


if __name__ == "__main__":
    unittest.main()
