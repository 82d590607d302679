"""Short questions beside another client's flood of long prompts."""
import multiprocessing
import random
import threading
import time

import raw_http2 as h2
from callers import ASKER, FIRST_TOKEN_SECONDS, FLOODER, QUEUE_SECONDS, ask, quantile, question, server_of, timing
from steps import Steps

RETRY_SECONDS = 5
STEP_TOKENS = 512


class Flood:
    """Keeps `size` long prompts in the queue, from a process of its own, until it is left; those that are refused come
    again some seconds later."""

    def __init__(self, address, size, num_tokens):
        self.stop = multiprocessing.Event()
        self.done, self.refused = multiprocessing.Value("i"), multiprocessing.Value("i")
        self.process = multiprocessing.Process(target=self._run, args=(address, size, num_tokens), daemon=True)

    def __enter__(self):
        self.process.start()
        return self

    def _run(self, address, size, num_tokens):
        connections = [h2.Connection(address, source=FLOODER) for _ in range(1 + size // 100)]
        for n in range(size):
            threading.Thread(target=self._send, args=(connections[n % len(connections)], n, num_tokens),
                             daemon=True).start()
        self.stop.wait()

    def _send(self, connection, n, num_tokens):
        request = question(num_tokens, 16, random.Random(n))
        while True:
            first, _ = ask(connection, request)
            count = self.done if first is not None else self.refused
            with count.get_lock():
                count.value += 1
            if first is None:
                time.sleep(RETRY_SECONDS)

    def __exit__(self, *_):
        self.stop.set()
        self.process.join()


def ask_many(address, count, pause, seed):
    """Of each of so many short questions, one after the other: seconds to the first token as the client sees it, as the
    engine does, and in the queue of that. None: it was refused."""
    rng, times = random.Random(seed), []
    connection = h2.Connection(address, source=ASKER)
    for _ in range(count):
        first, completed = ask(connection, question(rng.randrange(16, 64), 8, rng))
        times.append(first and (first, timing(completed, FIRST_TOKEN_SECONDS), timing(completed, QUEUE_SECONDS)))
        time.sleep(pause)
    connection.close()
    return times


def flood(args):
    with server_of(args, f"--step-tokens={STEP_TOKENS}") as server:
        ask_many(server.address, 20, 0, 7)  # warms up
        alone = ask_many(server.address, args.questions, 0.02, 1)
        with Flood(server.address, args.flood, args.flood_tokens) as flooder:
            time.sleep(args.settle)
            start = time.monotonic()
            with Steps(server) as steps:
                beside = ask_many(server.address, args.questions, 0.02, 1)
            print(f"flood: {args.flood} prompts of {args.flood_tokens} tokens, {flooder.done.value} done, "
                  f"{flooder.refused.value} refused; questions for {time.monotonic() - start:.0f} s beside it")
    lost = sum(times is None for times in beside)
    beside = [times for times in beside if times is not None]
    print(f"short questions: {len(beside)} answered beside the flood, {lost} refused; steps meanwhile: mean "
          f"{1000 * steps.mean:.1f} ms, p99 {1000 * steps.p99:.1f} ms")
    parts = {"first token": lambda times: times[0], "of that in the engine": lambda times: times[1],
             "of that in its queue": lambda times: times[2], "outside of the engine": lambda times: times[0] - times[1]}
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        for what, of in parts.items():
            one, other = (1000 * quantile([of(times) for times in some], part) for some in (alone, beside))
            print(f"{name} {what}: alone {one:.1f} ms, beside the flood {other:.1f} ms")
        one, other = (quantile([times[0] for times in some], part) for some in (alone, beside))
        print(f"{name}: {other / one:.2f} times alone; {(other - steps.mean) / one:.2f} without a mean step, "
              f"{(other - steps.p99) / one:.2f} without one of the 99th percentile; the goal is 2")
