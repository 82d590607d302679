"""TLS, tokens and certificates, through server and client."""
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from certificates import make_certificate  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
# Of "alpha", "beta" and "operator".
HASHES = {
    "a": "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8",
    "b": "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753",
    "ops": "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23",
}


class TenantsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-tenants-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        make_certificate(self.directory, "server", "DNS:localhost,IP:127.0.0.1")
        tenants = {name: {"token_sha256": [digest], "admin": name == "ops"} for name, digest in HASHES.items()}
        (self.directory / "tenants.json").write_text(json.dumps({"tenants": tenants}))
        for token in ("alpha", "beta", "operator", "stranger"):
            (self.directory / token).write_text(token + "\n")
        self.text = self.directory / "text.txt"
        self.text.write_text((ROOT / "models" / "texts" / "ezekiel.txt").read_text()[:4000])

    def server(self, *flags):
        environment = {"FOLIO_TLS_CA": str(self.directory / "server.pem"), "FOLIO_TOKEN_FILE": str(self.directory / "operator")}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)
        return RunningServer(BIN, MODEL, "--kv-bytes=50000000", f"--kv-dir={self.directory / 'kv'}",
                             f"--tls-cert={self.directory / 'server.pem'}", f"--tls-key={self.directory / 'server.key'}",
                             f"--tenants={self.directory / 'tenants.json'}", *flags)

    def folio(self, server, token, *args):
        return server.folio("--token-file", self.directory / token, *args)

    def documents(self, server, token):
        return [json.loads(line) for line in self.folio(server, token, "--json", "docs", "list").stdout.splitlines()]

    def test_each_tenant_has_its_documents_over_restarts(self):
        with self.server() as server:
            for token, name in (("alpha", "theirs"), ("alpha", "shared"), ("beta", "shared")):
                self.assertEqual(self.folio(server, token, "upload", self.text, "--id", name).returncode, 0)
            answer = self.folio(server, "beta", "ask", "--document", "shared", "--question", "Who?", "--max-new-tokens", 4)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            missing = self.folio(server, "beta", "ask", "--document", "theirs", "--question", "Who?")
            self.assertEqual((missing.returncode, "no document 'theirs'" in missing.stderr), (4, True), missing.stderr)
            stranger = self.folio(server, "stranger", "info")
            self.assertEqual(stranger.returncode, 1)
            self.assertIn("not known", stranger.stderr)
            for token in ("alpha", "beta"):
                wait_for(lambda token=token: all(one.get("saved") for one in self.documents(server, token)), f"saved: {token}")
        with self.server() as server:
            names = {token: [one["document_id"] for one in self.documents(server, token)] for token in ("alpha", "beta", "operator")}
            self.assertEqual(names, {"alpha": ["shared", "theirs"], "beta": ["shared"], "operator": []})

    def test_a_client_without_tls_is_told_nothing(self):
        with self.server() as server:
            with mock.patch.dict(os.environ):
                del os.environ["FOLIO_TLS_CA"]
                self.assertEqual(self.folio(server, "alpha", "info").returncode, 5)

    def get(self, server, path, token=None):
        """(status, body) of the metrics port; None, "" where it does not speak TLS as it should."""
        port = server.metrics_url.split(":")[2].split("/")[0]
        trust = ssl.create_default_context(cafile=str(self.directory / "server.pem"))
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except urllib.error.URLError:
            return None, ""

    def test_the_metrics_port_has_the_same_certificate_and_tokens(self):
        tenants = json.loads((self.directory / "tenants.json").read_text())
        tenants["tenants"]["b"]["metrics"] = True
        (self.directory / "tenants.json").write_text(json.dumps(tenants))
        with self.server("--metrics-tls", "--metrics-tokens", f"--audit-log={self.directory / 'audit'}") as server:
            self.assertEqual(self.get(server, "/readyz"), (200, "ok\n"))
            for token, status in ((None, 401), ("stranger", 401), ("alpha", 401), ("beta", 200), ("operator", 200)):
                answer, body = self.get(server, "/metrics", token)
                self.assertEqual((answer, "folio_audit_lines_dropped_total 0" in body), (status, status == 200), token)
            with self.assertRaises(OSError):
                urllib.request.urlopen(server.metrics_url, timeout=30)
            # Another certificate, which the same client trusts as soon as it is there.
            old = (self.directory / "server.pem").read_bytes()
            make_certificate(self.directory, "next", "DNS:localhost,IP:127.0.0.1")
            for suffix in ("key", "pem"):
                os.replace(self.directory / f"next.{suffix}", self.directory / f"server.{suffix}")
            self.assertNotEqual((self.directory / "server.pem").read_bytes(), old)
            wait_for(lambda: self.get(server, "/healthz")[0] == 200, "the metrics port has the new certificate")
            self.assertEqual(self.get(server, "/metrics", "beta")[0], 200)

    def test_ports_that_others_reach_need_tls_or_tokens(self):
        start = [BIN / "folio-server", f"--model={MODEL}", "--metrics-listen=off", "--print-config"]
        refused = subprocess.run([*start, "--listen=0.0.0.0:0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--insecure", refused.stderr)
        for more in ("--insecure", f"--tenants={self.directory / 'tenants.json'}"):
            allowed = subprocess.run([*start, "--listen=0.0.0.0:0", more], capture_output=True, text=True, timeout=60)
            self.assertEqual(allowed.returncode, 0, allowed.stderr)

    def test_equal_text_of_two_tenants_is_computed_for_each(self):
        with self.server() as server:
            computed = 'folio_prompt_tokens_total{source="computed"}'
            taken = []
            for token in ("alpha", "beta"):
                before = server.metrics()[computed]
                self.assertEqual(self.folio(server, token, "upload", self.text, "--id", "book").returncode, 0)
                taken.append(server.metrics()[computed] - before)
            self.assertGreater(taken[0], 500)
            self.assertEqual(taken[0], taken[1])

    def test_bad_files_end_the_start_with_one_line(self):
        for flag, path in (("--tenants", self.text), ("--tls-cert", self.text)):
            command = [BIN / "folio-server", f"--model={MODEL}", f"--{flag.strip('-')}={path}", "--listen=127.0.0.1:0", "--metrics-listen=off"]
            if flag == "--tls-cert":
                command.append(f"--tls-key={self.directory / 'server.key'}")
            result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"{flag} {path}", result.stderr)


if __name__ == "__main__":
    unittest.main()
