"""Clients of one server, each an address of its own with a share of its own, and what they and the server say of a request."""
import re
import struct
import time

import raw_http2 as h2
from running_server import RunningServer

GENERATE, ESTIMATE = "/folio.v1.Inference/Generate", "/folio.v1.Inference/Estimate"
FLOODER, ASKER = ("127.0.0.2", 0), ("127.0.0.3", 0)
TENANTS = [(f"127.0.0.{n}", 0) for n in range(4, 8)]
FIRST_ID, NUM_IDS = 300, 600
# Of GenerateEvent, of Completed, of Timings.
DELTA, COMPLETED, TIMINGS = 6, 8, 5
QUEUE_SECONDS, FIRST_TOKEN_SECONDS = 1, 3
WINDOW = 1 << 20  # of HTTP/2: prompts of token ids are large


class Caller(h2.Connection):
    """Knows after how many seconds a call that was refused may come again, by its stream."""

    def __init__(self, address, source):
        self.delays = {}
        super().__init__(address, source=source, window=WINDOW)

    def _on_frame(self, kind, flags, stream, payload):
        found = kind == h2.HEADERS and re.search(rb"grpc-retry-pushback-ms.(\d+)", payload, re.DOTALL)
        if found:
            self.delays[stream] = int(found[1]) / 1000
        super()._on_frame(kind, flags, stream, payload)


def question(num_tokens, max_new_tokens, rng):
    """A GenerateRequest: so many random tokens, an answer of so many whatever it says."""
    ids = b"".join(h2.varint(FIRST_ID + rng.randrange(NUM_IDS)) for _ in range(num_tokens))
    stopping = h2.field(1, max_new_tokens) + h2.field(4, 1)
    return h2.field(3, h2.field(1, ids)) + h2.field(7, stopping)


def number(data, wanted):
    """A double of a message; None: it is not there."""
    return next((struct.unpack("<d", value)[0] for key, value in h2.fields(data) if key == wanted), None)


def ask(connection, request):
    """(seconds to the first token, Completed) of one question; None, None: it was refused."""
    start, first, completed = time.monotonic(), None, None
    for event in connection.call(GENERATE, request, timeout=600):
        for key, value in h2.fields(event):
            if key == DELTA and first is None:
                first = time.monotonic() - start
            if key == COMPLETED:
                completed = value
    return (first, completed) if completed is not None else (None, None)


def timing(completed, which):
    return number(dict(h2.fields(completed))[TIMINGS], which) or 0


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def server_of(args, *flags):
    return RunningServer(args.bin, args.model, *flags, *args.flags, processors=args.server_processors)
