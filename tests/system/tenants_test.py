"""TLS, tokens and certificates, through server and client."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
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

    def server(self):
        environment = {"FOLIO_TLS_CA": str(self.directory / "server.pem"), "FOLIO_TOKEN_FILE": str(self.directory / "operator")}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)
        return RunningServer(BIN, MODEL, "--kv-bytes=50000000", f"--kv-dir={self.directory / 'kv'}",
                             f"--tls-cert={self.directory / 'server.pem'}", f"--tls-key={self.directory / 'server.key'}",
                             f"--tenants={self.directory / 'tenants.json'}")

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
