"""One HTTP/2 connection whose client may do what no client should: its frames are sent as told, and what the server answers
is kept, as hyperframe and hpack read it."""
import socket
import ssl
import struct
import sys
import time

# Debian's python3-h2, where another Python comes first.
sys.path.append("/usr/lib/python3/dist-packages")
from hpack import Decoder, Encoder  # noqa: E402
from hyperframe import frame as frames  # noqa: E402

import raw_http2 as grpc  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GENERATE = "/folio.v1.Inference/Generate"
ANSWER_TOKENS = 4
DELTA, TOKEN_IDS = 6, 2  # fields of GenerateEvent and of Delta
# Four tokens, whatever they are.
QUESTION = grpc.message(grpc.field(2, "Who?") + grpc.field(7, grpc.field(1, ANSWER_TOKENS) + grpc.field(4, 1)))
PATIENCE_SECONDS = 20
PROBE = b"are you?"
GRPC_HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", GENERATE), (":authority", "folio"),
                ("content-type", "application/grpc"), ("te", "trailers")]


def raw_frame(kind, flags, stream, payload=b"", length=None):
    """A frame that need not make sense."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return grpc.literal(name, value)


def connect(address, tls=None):
    """A socket, over TLS with an SSLContext."""
    host, port = address.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")


def num_tokens(data):
    """Tokens of the answer in the messages of a Generate call."""
    tokens = 0
    while len(data) >= 5:
        size = struct.unpack_from(">I", data, 1)[0]
        for number, value in grpc.fields(data[5:5 + size]):
            if number == DELTA:
                # Packed varints, each of which ends with a byte below 128.
                tokens += sum(byte < 128 for n, ids in grpc.fields(value) if n == TOKEN_IDS for byte in ids)
        data = data[5 + size:]
    return tokens


class Wire:
    """`settings`: the preface and SETTINGS are sent, and those of the server awaited."""

    def __init__(self, address, tls=None, settings=True):
        self.socket = connect(address, tls)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.unread, self.closed, self.goaway = b"", False, None
        self.settings, self.resets, self.ended, self.data, self.headers, self.probes = {}, {}, set(), {}, {}, 0
        if settings:
            self.send(PREFACE + raw_frame(grpc.SETTINGS, 0, 0))
            self.read_until(lambda: self.settings)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """What a server that has closed does not take is lost, and seen when it is read."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def send_frame(self, frame):
        self.send(frame.serialize())

    def header_frame(self, stream, fields=None, flags=grpc.END_HEADERS, block=None):
        """HEADERS of a call; `fields` instead of those of Generate."""
        if block is None:
            block = self.encoder.encode(GRPC_HEADERS if fields is None else fields)
        return raw_frame(grpc.HEADERS, flags, stream, block)

    def open(self, stream, *args, **kwargs):
        self.send(self.header_frame(stream, *args, **kwargs))

    def ask(self, stream):
        self.open(stream)
        self.send(raw_frame(grpc.DATA, grpc.END_STREAM, stream, QUESTION))

    def read_until(self, condition, seconds=PATIENCE_SECONDS):
        """Reads until the condition holds, the connection is over or the time is. Whether the condition holds."""
        end = time.monotonic() + seconds
        while not condition() and not self.closed:
            left = end - time.monotonic()
            if left <= 0:
                break
            self.socket.settimeout(left)
            try:
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            except (OSError, ssl.SSLError):
                part = b""
            if not part:
                self.closed = True
            self.unread += part
            self._take_frames()
        return condition()

    def _take_frames(self):
        while len(self.unread) >= 9:
            frame, length = frames.Frame.parse_frame_header(memoryview(self.unread[:9]))
            if len(self.unread) < 9 + length:
                return
            frame.parse_body(memoryview(self.unread[9:9 + length]))
            self.unread = self.unread[9 + length:]
            self._on(frame)

    def _on(self, frame):
        if isinstance(frame, frames.SettingsFrame) and "ACK" not in frame.flags:
            self.settings = dict(frame.settings) or {0: 0}
            self.send_frame(frames.SettingsFrame(0, flags=["ACK"]))
        elif isinstance(frame, frames.PingFrame):
            if "ACK" in frame.flags:
                self.probes += frame.opaque_data == PROBE
            else:
                self.send_frame(frames.PingFrame(0, frame.opaque_data, flags=["ACK"]))
        elif isinstance(frame, frames.GoAwayFrame):
            self.goaway = frame.error_code
        elif isinstance(frame, frames.RstStreamFrame):
            self.resets[frame.stream_id] = frame.error_code
            self.ended.add(frame.stream_id)
        elif isinstance(frame, frames.HeadersFrame):
            self.headers.setdefault(frame.stream_id, {}).update(self.decoder.decode(frame.data))
        elif isinstance(frame, frames.DataFrame):
            self.data[frame.stream_id] = self.data.get(frame.stream_id, b"") + frame.data
            if frame.data:
                for stream in (0, frame.stream_id):
                    self.send_frame(frames.WindowUpdateFrame(stream, len(frame.data)))
        if "END_STREAM" in frame.flags:
            self.ended.add(frame.stream_id)

    def probe(self):
        """Whether the server still answers on this connection."""
        before = self.probes
        self.send_frame(frames.PingFrame(0, PROBE))
        return self.read_until(lambda: self.probes > before or self.goaway is not None) and self.goaway is None

    def answered(self, stream):
        """Whether the call of a stream ended as it should, with all tokens."""
        return num_tokens(self.data.get(stream, b"")) == ANSWER_TOKENS and self.status(stream) == 0

    def status(self, stream):
        """The gRPC status, or that of HTTP; None: none has come."""
        headers = self.headers.get(stream, {})
        if "grpc-status" in headers:
            return int(headers["grpc-status"])
        return None if headers.get(":status", "200") == "200" else int(headers[":status"])
