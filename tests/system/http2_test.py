"""Violations of HTTP/2 (http2_cases.py) against a real server, in cleartext and over TLS: each ends what RFC 9113 says, the
server lives, and a client on another connection has every answer whole."""
import os
import pathlib
import ssl
import sys
import tempfile
import threading
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from certificates import make_certificate  # noqa: E402
from http2_cases import CASES, CONNECTION, FIRST, NOTHING, STREAM  # noqa: E402
from http2_wire import ANSWER_TOKENS, GRPC_HEADERS, PATIENCE_SECONDS, QUESTION, Wire, connect, num_tokens  # noqa: E402
from running_server import RunningServer  # noqa: E402

import h2.config  # noqa: E402  (http2_wire finds it)
import h2.connection  # noqa: E402
import h2.events  # noqa: E402
import h2.exceptions  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
A_LATER_STREAM = 99_999


class OtherClient:
    """One question after the other, on one connection that hyper-h2 keeps: it judges every frame of the server."""

    def __init__(self, address, tls):
        self.socket = connect(address, tls)
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.stop, self.changed, self.answers, self.failed = threading.Event(), threading.Condition(), 0, None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        failed = None
        try:
            self.http2.initiate_connection()
            while not self.stop.is_set() and failed is None:
                failed = self._ask()
                with self.changed:
                    self.answers += failed is None
                    self.changed.notify_all()
        except (OSError, h2.exceptions.ProtocolError) as error:
            failed = repr(error)
        with self.changed:
            self.failed = failed
            self.changed.notify_all()

    def _ask(self):
        """None, or what was not as it should be."""
        stream = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream, GRPC_HEADERS)
        self.http2.send_data(stream, QUESTION, end_stream=True)
        data, status = b"", None
        while True:
            self.socket.sendall(self.http2.data_to_send())
            part = self.socket.recv(1 << 16)
            if not part:
                return "the connection was closed"
            for event in self.http2.receive_data(part):
                if isinstance(event, h2.events.DataReceived):
                    data += event.data
                    self.http2.acknowledge_received_data(event.flow_controlled_length, stream)
                elif isinstance(event, h2.events.TrailersReceived):
                    status = dict(event.headers)["grpc-status"]
                elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                    return repr(event)
                elif isinstance(event, h2.events.StreamEnded):
                    whole = status == "0" and num_tokens(data) == ANSWER_TOKENS
                    return None if whole else f"status {status}, {num_tokens(data)} tokens"

    def answers_again(self):
        """Whether another answer came from now on, whole like all before."""
        with self.changed:
            goal = self.answers + 2  # the first of them may have been under way
            return self.changed.wait_for(lambda: self.failed or self.answers >= goal, 60) and self.failed is None

    def close(self):
        self.stop.set()
        self.thread.join()
        self.socket.close()


def what_ended(wire, may_go_on):
    """What the server ended: the connection, the first stream, or nothing. Streams end a moment after what ended them."""
    if not wire.probe():
        return CONNECTION
    if not may_go_on:
        wire.read_until(lambda: FIRST in wire.ended, PATIENCE_SECONDS)
    return STREAM if FIRST in wire.ended and not wire.answered(FIRST) else NOTHING


class Http2Test:
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(RunningServer(BIN, MODEL, "--kv-bytes=64MiB", "--log-level=warning", *cls.flags()))
        cls.other = OtherClient(cls.server.address, cls.tls())
        cls.addClassCleanup(cls.other.close)

    def check(self, one):
        allowed = {one.ends, one.grpc} | ({CONNECTION} if one.ends == STREAM else set())
        with Wire(self.server.address, self.tls(), settings=one.settings) as wire:
            one.act(wire)
            ended = what_ended(wire, may_go_on=NOTHING in allowed)
            self.assertIn(ended, allowed, f"RFC 9113, section {one.rule}; reset: {wire.resets}, GOAWAY: {wire.goaway}")
            if ended != CONNECTION:
                wire.ask(A_LATER_STREAM)
                wire.read_until(lambda: A_LATER_STREAM in wire.ended)
                self.assertTrue(wire.answered(A_LATER_STREAM), "the connection goes on")
            elif wire.goaway is not None:
                self.assertNotEqual(wire.goaway, 0, "GOAWAY says what was wrong")
        self.assertTrue(self.other.answers_again(), self.other.failed)
        self.assertIsNone(self.server.process.poll(), "the server lives")

    def test_a_violation_ends_its_connection_or_stream_and_nothing_else(self):
        self.assertGreater(len(CASES), 70)
        for one in CASES:
            with self.subTest(one.name):
                self.check(one)

    def test_a_call_that_violates_nothing_is_answered(self):
        with Wire(self.server.address, self.tls()) as wire:
            wire.ask(FIRST)
            wire.read_until(lambda: FIRST in wire.ended)
            self.assertTrue(wire.answered(FIRST))
            self.assertEqual(what_ended(wire, may_go_on=False), NOTHING)


class CleartextTest(Http2Test, unittest.TestCase):
    @classmethod
    def flags(cls):
        return []

    @classmethod
    def tls(cls):
        return None


class TlsTest(Http2Test, unittest.TestCase):
    @classmethod
    def flags(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="folio-http2-")))
        make_certificate(directory, "server", "DNS:localhost,IP:127.0.0.1")
        cls.root = directory / "server.pem"
        cls.enterClassContext(mock.patch.dict(os.environ, {"FOLIO_TLS_CA": str(cls.root)}))
        return [f"--tls-cert={cls.root}", f"--tls-key={directory / 'server.key'}"]

    @classmethod
    def tls(cls):
        context = ssl.create_default_context(cafile=cls.root)
        context.set_alpn_protocols(["h2"])
        return context


if __name__ == "__main__":
    unittest.main()
