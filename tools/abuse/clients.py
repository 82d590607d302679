"""Clients of the server, each in a process of its own: the well-behaved one, and attackers."""
import concurrent.futures
import multiprocessing
import os
import statistics
import time

import raw_http2 as h2

WELL_BEHAVED = ("127.0.0.9", 0)
LOWEST_PRIORITY = 19
DELTA = 6  # of GenerateEvent
DOCUMENTS, DOCUMENT_ID, DEVICE_KV_BYTES, SUMMARY_BYTES = 1, 1, 8, 9  # of ListDocumentsResponse and Document
QUESTION = h2.field(2, "Here is a question that is short.") + h2.field(7, h2.field(1, 8) + h2.field(4, 1))


def ask(address):
    """One short question on a connection of its own: seconds to its first token, and between those after it."""
    moments = [time.monotonic()]
    one = h2.Connection(address, source=WELL_BEHAVED)
    try:
        for event in one.call("/folio.v1.Inference/Generate", QUESTION, timeout=30):
            if any(number == DELTA for number, _ in h2.fields(event)):
                moments.append(time.monotonic())
    finally:
        one.close()
    if len(moments) == 1:
        raise h2.Closed
    first, *gaps = (later - earlier for earlier, later in zip(moments, moments[1:]))
    return first, gaps


def keep_asking(address, stop, answers):
    times, gaps, failures = [], [], 0
    while not stop.is_set():
        try:
            first, between = ask(address)
            times.append(first)
            gaps += between
        except (h2.Closed, OSError):
            failures += 1
        time.sleep(0.02)
    answers.put((times, gaps, failures))


def p99(seconds):
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else float("nan")


class GoodClient:
    """One question after the other."""

    def __init__(self, address):
        self.stop_asking, self.answers = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=keep_asking, args=(address, self.stop_asking, self.answers))

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop_asking.set()
        self.times, self.gaps, self.failures = self.answers.get()
        self.process.join()


def attack_apart(attack, *arguments):
    """Attackers have machines of their own; here they only take what the server and the well-behaved client leave of the
    processors. That holds within a session: the kernel shares them between sessions first (sched(7), autogroup)."""
    with concurrent.futures.ProcessPoolExecutor(1, initializer=os.nice, initargs=(LOWEST_PRIORITY,)) as apart:
        return apart.submit(attack, *arguments).result()


def call(address, method, request):
    """The messages that answer one call on a connection of its own."""
    one = h2.Connection(address, source=WELL_BEHAVED)
    try:
        return list(one.call(method, request, timeout=30))
    finally:
        one.close()


def documents(address):
    """Fields of each document that the server lists: all there can be."""
    answers = call(address, "/folio.v1.Documents/ListDocuments", h2.field(1, 1000))
    return [h2.fields(document) for answer in answers for number, document in h2.fields(answer) if number == DOCUMENTS]


def kv_of_documents(address):
    """Bytes of KV cache that the documents hold."""
    return sum(value for document in documents(address) for number, value in document
               if number in (DEVICE_KV_BYTES, SUMMARY_BYTES))


def delete_documents(address):
    there = documents(address)
    one = h2.Connection(address, source=WELL_BEHAVED)
    try:
        for document in there:
            list(one.call("/folio.v1.Documents/DeleteDocument", h2.field(1, dict(document)[DOCUMENT_ID]), timeout=30))
    finally:
        one.close()
