"""gRPC over HTTP/2 by hand, so that a client can also do what no library lets it."""
import socket
import struct
import threading

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_FRAME = 16384
INITIAL_WINDOW = 65535


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header field that no table keeps."""
    return b"\x00" + string(name) + string(value)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return integer(len(data), 7) + data


def integer(value, bits, first=0):
    """An HPACK integer (RFC 7541, 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def grpc_headers(method, **more):
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "folio",
              "content-type": "application/grpc", "te": "trailers", **more}
    return b"".join(literal(name.replace("_", "-"), value) for name, value in fields.items())


def message(payload, compressed=0):
    return struct.pack(">BI", compressed, len(payload)) + payload


def field(number, value):
    """One protobuf field: bytes and text as length-delimited, int as varint."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data):
    """[(number, value)] of a protobuf message: varints as int, everything else as bytes."""
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            size, at = read_varint(data, at)
        if key & 7 == 0:
            found.append((key >> 3, size))
        else:
            found.append((key >> 3, data[at:at + size]))
            at += size
    return found


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


class Closed(Exception):
    """The server has closed the connection."""


class Connection:
    """A client's end. A thread answers SETTINGS and PING, keeps the windows and collects what comes; with reads=False
    it never gives window back, so that the server can write no more than the first windows."""

    def __init__(self, address, reads=True, source=None, window=INITIAL_WINDOW):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 10, source_address=source)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reads, self.changed = reads, threading.Condition()
        self.window, self.stream_windows, self.initial_window = INITIAL_WINDOW, {}, INITIAL_WINDOW
        self.messages, self.ended, self.closed = {}, set(), False
        self.next_stream, self.partial = 1, {}
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        threading.Thread(target=self._read, daemon=True).start()

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed from error

    def open(self, method, end=False, **headers):
        """A new stream; its id."""
        with self.changed:
            stream, self.next_stream = self.next_stream, self.next_stream + 2
            self.stream_windows.setdefault(stream, self.initial_window)
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream,
                        grpc_headers(method, **headers)))
        return stream

    def write(self, stream, data, end=False):
        """Sends DATA as the windows allow. Raises Closed when the connection or the stream ends before."""
        while data or end:
            with self.changed:
                while data and not self.closed and stream not in self.ended and self._room(stream) <= 0:
                    self.changed.wait()
                if self.closed or stream in self.ended:
                    raise Closed
                part = data[:min(self._room(stream), MAX_FRAME)] if data else b""
                self.window -= len(part)
                self.stream_windows[stream] -= len(part)
            data = data[len(part):]
            self.send(frame(DATA, END_STREAM if end and not data else 0, stream, part))
            if not data:
                return

    def _room(self, stream):
        return min(self.window, self.stream_windows[stream])

    def call(self, method, request, timeout=60, **headers):
        """A whole unary or server-streaming call; yields its messages."""
        stream = self.open(method, **headers)
        self.write(stream, message(request), end=True)
        while True:
            with self.changed:
                ready = self.changed.wait_for(
                    lambda: self.messages.get(stream) or stream in self.ended or self.closed, timeout)
                if not ready or (self.closed and not self.messages.get(stream)):
                    raise Closed
                batch = self.messages.pop(stream, [])
                over = stream in self.ended
            yield from batch
            if over:
                return

    def wait_closed(self, timeout):
        with self.changed:
            return self.changed.wait_for(lambda: self.closed, timeout)

    def _read(self):
        try:
            while True:
                head = self._exactly(9)
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                self._on_frame(kind, flags, int.from_bytes(head[5:], "big"), self._exactly(size))
        except (OSError, ValueError):
            pass
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ValueError("closed")
            data += part
        return bytes(data)

    def _on_frame(self, kind, flags, stream, payload):
        answer = b""
        with self.changed:
            if kind == SETTINGS and not flags & ACK:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack_from(">HI", payload, at)
                    if name == 4:
                        for known in self.stream_windows:
                            self.stream_windows[known] += value - self.initial_window
                        self.initial_window = value
                answer = frame(SETTINGS, ACK, 0)
            elif kind == PING and not flags & ACK:
                answer = frame(PING, ACK, 0, payload)
            elif kind == WINDOW_UPDATE:
                more = struct.unpack(">I", payload)[0]
                if stream == 0:
                    self.window += more
                elif stream in self.stream_windows:
                    self.stream_windows[stream] += more
            elif kind == DATA:
                self._on_data(stream, payload)
                if self.reads and payload:
                    more = struct.pack(">I", len(payload))
                    answer = frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more)
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                self.ended.add(stream)
            self.changed.notify_all()
        if answer:
            self.socket.sendall(answer)

    def _on_data(self, stream, payload):
        data = self.partial.get(stream, b"") + payload
        while len(data) >= 5:
            size = struct.unpack_from(">I", data, 1)[0]
            if len(data) < 5 + size:
                break
            self.messages.setdefault(stream, []).append(data[5:5 + size])
            data = data[5 + size:]
        self.partial[stream] = data
