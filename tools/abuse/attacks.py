"""What a client can do to a server, one function each: attack(address, metrics_address, scale). `scale` is 1 for the
measured numbers and less for a short run. An attack returns what must have been counted in the server's metrics:
{series: least increase}. A server that closes the connection has answered as well."""
import contextlib
import gzip
import socket
import struct
import threading
import time

import raw_http2 as h2
from abandoned import abandon

GENERATE, SCORE = "/folio.v1.Inference/Generate", "/folio.v1.Inference/Score"
UPLOAD, TOKENIZE = "/folio.v1.Documents/UploadDocument", "/folio.v1.Text/Tokenize"
REJECTED_MEMORY = 'folio_requests_rejected_total{reason="memory"}'
MIB = 1 << 20


CLOSES_WITHIN = 10  # seconds. An attacker that goes earlier resets the connection, and the server may never see its bytes


def count(most, scale):
    return max(2, int(most * scale))


def closed(reason):
    return f'folio_connections_closed_total{{reason="{reason}"}}'


@contextlib.contextmanager
def connection(address, **options):
    one = h2.Connection(address, **options)
    try:
        yield one
    except h2.Closed:
        pass
    finally:
        one.close()


def together(work, number):
    threads = [threading.Thread(target=work, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def idle_connections(address, _, scale):
    """More connections than there are descriptors for; none of them says anything."""
    sockets = []
    host, port = address.rsplit(":", 1)
    for _ in range(count(1500, scale)):
        with contextlib.suppress(OSError):
            sockets.append(socket.create_connection((host, int(port)), 2))
    time.sleep(2)
    for one in sockets:
        one.close()
    return {}


def endless_header(address, _, scale):
    """One header block whose CONTINUATION frames never end. The first of them come at once: when they come one by one
    gRPC sees a field of 16,000 bytes, and closes the connection before the limit is reached."""
    more = h2.frame(h2.CONTINUATION, 0, 1, h2.literal("x-filler", "a" * 16000)) * 4
    with connection(address) as one:
        one.send(h2.frame(h2.HEADERS, 0, 1, h2.grpc_headers(GENERATE)) + more)
        for _ in range(count(12500, scale)):
            one.send(more)
        one.wait_closed(CLOSES_WITHIN)
    return {closed("abuse"): 1}


def header_amplification(address, _, scale):
    """Each byte on the wire stands for a field of 4 KiB in the table of the connection."""
    indexed = b"\x40" + h2.string("x-large") + h2.string("a" * 4000)
    references = b"\xbe" * 4000
    with connection(address) as one:
        for n in range(count(64, scale)):
            block = h2.grpc_headers(GENERATE) + (indexed if n == 0 else b"") + references
            one.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * n + 1, block))
        one.wait_closed(CLOSES_WITHIN)
    return {closed("abuse"): 1}


def many_streams(address, _, scale):
    """Opened at once: of those that come slowly gRPC refuses what is beyond its limit, and none stays open."""
    headers = h2.grpc_headers(GENERATE)
    with connection(address) as one:
        one.send(b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * n + 1, headers) for n in range(count(82000, scale))))
        one.wait_closed(CLOSES_WITHIN)
    return {closed("abuse"): 1}


def inflating_messages(address, _, scale):
    """900 KiB that become 900 MiB."""
    packed = gzip.compress(bytes(int(900 * MIB * scale)), 1)
    for _ in range(4):
        with connection(address) as one:
            stream = one.open(GENERATE, grpc_encoding="gzip")
            one.write(stream, h2.message(packed, compressed=1), end=True)
            with one.changed:
                one.changed.wait_for(lambda: stream in one.ended or one.closed, 10)
    return {}


def tokenize_flood(address, _, scale):
    text = h2.field(1, "word " * (4 * MIB // 5 - 100))

    def one_call(_):
        with connection(address) as one:
            list(one.call(TOKENIZE, text))

    together(one_call, count(113, scale))
    return {REJECTED_MEMORY: 1} if scale == 1 else {}


def token_id_flood(address, _, scale):
    ids = h2.field(3, h2.field(1, b"\x05" * int(3.8 * MIB)))

    def one_call(_):
        with connection(address) as one:
            list(one.call(GENERATE, ids + h2.field(7, h2.field(1, 1))))

    together(one_call, count(32, scale))
    return {}


def text_without_spaces(address, _, scale):
    with connection(address) as one:
        stream = one.open(UPLOAD)
        one.write(stream, h2.message(h2.field(1, h2.field(1, "abuse-spaceless"))))
        part, total = b"a" * (1 << 19), int(6 * MIB * scale)
        for offset in range(0, total, len(part)):
            chunk = h2.field(1, offset) + h2.field(2, part)
            one.write(stream, h2.message(h2.field(2, chunk)))
        one.write(stream, h2.message(h2.field(3, b"")), end=True)
        with one.changed:
            one.changed.wait_for(lambda: stream in one.ended or one.closed, 60)
    return {}


def unread_scores(address, _, scale):
    """Sends text to be scored, token by token, and reads no score."""
    ids = h2.message(h2.field(3, h2.field(1, b"\x05" * 4096)))
    with connection(address, reads=False) as one:
        stream = one.open(SCORE)
        one.write(stream, h2.message(h2.field(1, h2.field(1, h2.field(2, b"")) + h2.field(4, 1))))
        end = time.monotonic() + 150 * scale

        def stop():
            time.sleep(150 * scale)
            one.close()

        threading.Thread(target=stop, daemon=True).start()
        while time.monotonic() < end:
            one.write(stream, ids)
    return {}


def unread_answers(address, _, scale):
    """As many answers as the batch has places, none of which is read."""
    # A strategy of bounded memory, so that what is short is places and not the KV cache.
    wanted = h2.field(5, h2.field(2, b"")) + h2.field(7, h2.field(1, 16000) + h2.field(4, 1))
    connections = [h2.Connection(address, reads=False, window=0) for _ in range(count(64, scale))]
    for one in connections:
        stream = one.open(GENERATE)
        one.write(stream, h2.message(h2.field(2, "Tell me all.") + wanted), end=True)
    time.sleep(20 * scale + 5)
    for one in connections:
        one.close()
    return {}


def unfinished_messages(address, _, scale):
    """Messages of 4 MiB that lack their last byte."""
    with connection(address) as one:
        for _ in range(count(260, scale)):
            stream = one.open(GENERATE)
            one.write(stream, struct.pack(">BI", 0, 4 * MIB - 100) + bytes(4 * MIB - 101))
    return {}


def reset_flood(address, _, scale):
    with connection(address) as one:
        for _ in range(count(117000, scale)):
            stream = one.open(GENERATE)
            one.send(h2.frame(h2.RST_STREAM, 0, stream, struct.pack(">I", 8)))
        one.wait_closed(CLOSES_WITHIN)
    return {closed("abuse"): 1} if scale == 1 else {}


def upload_headers(address, _, scale):
    """An upload begins with 13 bytes; 1,100 of them, never gone on with."""
    for first in range(0, count(1100, scale), 100):
        with connection(address) as one:
            streams = []
            for n in range(first, first + 100):
                stream = one.open(UPLOAD)
                one.write(stream, h2.message(h2.field(1, h2.field(1, f"abuse-{n}"))))
                streams.append(stream)
            with one.changed:
                one.changed.wait_for(lambda: one.closed or all(s in one.messages for s in streams), 20)
    # There is room for who has text.
    with connection(address) as one:
        stream = one.open(UPLOAD)
        one.write(stream, h2.message(h2.field(1, h2.field(1, "after-the-flood"))))
        one.write(stream, h2.message(h2.field(2, h2.field(2, "Some text of a document."))))
        one.write(stream, h2.message(h2.field(3, b"")), end=True)
        with one.changed:
            one.changed.wait_for(lambda: stream in one.ended or one.closed, 20)
    return {'folio_grpc_server_handled_total{grpc_code="OK",grpc_method="UploadDocument"}': 1}


def half_scrapes(_, metrics_address, scale):
    host, port = metrics_address.rsplit(":", 1)
    sockets = [socket.create_connection((host, int(port)), 2) for _ in range(count(50, scale))]
    for one in sockets:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
    time.sleep(3)
    for one in sockets:
        one.close()
    return {}


def clients_that_never_read(address, _, scale):
    """200 clients, each of which asks for a long answer and reads none of it, and is there until the server ends it."""
    wanted = h2.field(5, h2.field(2, b"")) + h2.field(7, h2.field(1, 16000) + h2.field(4, 1))
    connections = [h2.Connection(address, reads=False, window=0) for _ in range(200)]
    for one in connections:
        stream = one.open(GENERATE)
        one.write(stream, h2.message(h2.field(2, "Tell me all.") + wanted), end=True)
    time.sleep(120 * scale)
    for one in connections:
        one.close()
    return {}


def abandoned_requests(address, _, scale):
    """Calls that are left in the queue, while their text is tokenised, in prefill and decode, in an upload, after the
    client's half and by resets. That some came to each phase of the engine is seen in what it counts."""
    abandon(address, count(100000, scale))
    return {f'folio_request_cancellations_total{{phase="{phase}"}}': 1 for phase in ("tokenise", "queue", "prefill", "decode")}


ATTACKS = [idle_connections, endless_header, header_amplification, many_streams, inflating_messages, tokenize_flood,
           token_id_flood, text_without_spaces, unread_scores, unread_answers, unfinished_messages, reset_flood,
           upload_headers, half_scrapes, clients_that_never_read, abandoned_requests]
