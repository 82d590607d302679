"""Calls that their clients leave, each at a moment of its own: see MOMENTS."""
import contextlib
import random
import socket
import struct
import threading
import time

import raw_http2 as h2

GENERATE, SCORE, TOKENIZE = "/folio.v1.Inference/Generate", "/folio.v1.Inference/Score", "/folio.v1.Text/Tokenize"
UPLOAD = "/folio.v1.Documents/UploadDocument"
WORKERS, CALLS_OF_A_CONNECTION = 8, 100  # more at once than run and wait: some are refused, some never get a place
LONGEST_SECONDS = 0.05  # from the request to its end
PREFILL, DELTA = 5, 6  # of GenerateEvent
WAITING = 0.01  # of the calls that are left in prefill and decode wait until they are there
HUGE = 0.02  # of the calls that are left while their text is tokenised have so much of it that this lasts
CANCEL = struct.pack(">I", 8)


def question(prompt_words, new_tokens):
    return h2.message(h2.field(2, "word " * prompt_words) + h2.field(7, h2.field(1, new_tokens) + h2.field(4, 1)))


SHORT, LONG_PROMPT, LONG_ANSWER = question(20, 40), question(400, 40), question(5, 400)
HUGE_PROMPT = question(100_000, 40)
HEADER_OF_SCORES = h2.message(h2.field(1, h2.field(1, h2.field(2, b"")) + h2.field(4, 1)))
TEXT_TO_SCORE = h2.message(h2.field(2, "word " * 500))
PART_OF_UPLOAD = h2.message(h2.field(2, h2.field(2, "word " * 200)))


def header_of_upload(number):
    """Of one of so many documents; each goes on with what the last upload of it left."""
    return h2.message(h2.field(1, h2.field(1, f"abuse-abandoned-{number % 400}") + h2.field(6, "abuse")))


def wait_for_event(one, stream, kind):
    """Waits until an event of a kind has come, the stream has ended or some seconds are over."""
    def has_come():
        return any(number == kind for message in one.messages.get(stream, []) for number, _ in h2.fields(message))
    with one.changed:
        one.changed.wait_for(lambda: one.closed or stream in one.ended or has_come(), 5)


class Leaver:
    """Begins the calls of one connection, each for the moment of its name; returns the stream, None if it has ended."""

    def __init__(self, one, chance):
        self.one, self.chance = one, chance

    def queue(self, _):
        """The request is whole; others are before it."""
        stream = self.one.open(GENERATE)
        self.one.write(stream, SHORT, end=True)
        return stream

    def tokenise(self, _):
        if self.chance.random() >= HUGE:
            stream = self.one.open(TOKENIZE)
            self.one.write(stream, h2.message(h2.field(1, "word " * 2000)), end=True)
            return stream
        # Ended before the calls that come after it begin: however long these take, its text is being tokenised then.
        stream = self.one.open(GENERATE)
        self.one.write(stream, HUGE_PROMPT, end=True)
        time.sleep(self.chance.uniform(0, LONGEST_SECONDS))
        self.one.send(h2.frame(h2.RST_STREAM, 0, stream, CANCEL))
        return None

    def prefill(self, _):
        return self.answer(LONG_PROMPT, PREFILL)

    def decode(self, _):
        return self.answer(LONG_ANSWER, DELTA)

    def answer(self, request, event):
        stream = self.one.open(GENERATE)
        self.one.write(stream, request, end=True)
        if self.chance.random() < WAITING:
            wait_for_event(self.one, stream, event)
        return stream

    def upload(self, n):
        stream = self.one.open(UPLOAD)
        self.one.write(stream, header_of_upload(n) + PART_OF_UPLOAD)
        return stream

    def half_close(self, n):
        """The client's side has ended, after a part of what should come or before any of it."""
        method = (SCORE, UPLOAD, GENERATE)[n % 3]
        stream = self.one.open(method)
        self.one.write(stream, {SCORE: HEADER_OF_SCORES + TEXT_TO_SCORE, UPLOAD: header_of_upload(n), GENERATE: b""}[method], end=True)
        return stream

    def reset(self, n):
        """At once, with or without a request."""
        stream = self.one.open(GENERATE)
        if n % 2:
            self.one.write(stream, SHORT)
        self.one.send(h2.frame(h2.RST_STREAM, 0, stream, CANCEL))
        return None


MOMENTS = (Leaver.queue, Leaver.tokenise, Leaver.prefill, Leaver.decode, Leaver.upload, Leaver.half_close, Leaver.reset)


def leave(one, chance, calls, first):
    """So many calls on one connection, which ends with the last of them, half the time by a reset of TCP."""
    leaver, ends = Leaver(one, chance), []
    for n in range(first, first + calls):
        stream = MOMENTS[n % len(MOMENTS)](leaver, n)
        if stream is not None:
            ends.append((time.monotonic() + chance.uniform(0, LONGEST_SECONDS), stream))
    for moment, stream in sorted(ends)[:-calls // 4]:
        time.sleep(max(0.0, moment - time.monotonic()))
        one.send(h2.frame(h2.RST_STREAM, 0, stream, CANCEL))
    if chance.random() < 0.5:
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def abandon(address, number):
    """`number` calls in all. The seed is fixed; when the server comes to them is not."""
    def some(worker):
        chance, done = random.Random(worker), 0
        while done < number // WORKERS:
            with contextlib.suppress(h2.Closed, OSError):
                one = h2.Connection(address)
                try:
                    leave(one, chance, CALLS_OF_A_CONNECTION, worker * number + done)
                finally:
                    one.close()
            done += CALLS_OF_A_CONNECTION

    workers = [threading.Thread(target=some, args=(n,)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
