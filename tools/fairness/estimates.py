"""What Inference.Estimate says of requests against what then happened to them."""
import multiprocessing
import random
import statistics
import threading
import time

import raw_http2 as h2
from callers import (ESTIMATE, FIRST_TOKEN_SECONDS, QUEUE_SECONDS, TENANTS, Caller, ask, number, quantile, question,
                     server_of, timing)
from steps import Steps

# Of EstimateResponse.
ESTIMATED_QUEUE, ESTIMATED_FIRST_TOKEN = 9, 10
# Prompts in tokens, and how many of ten are so long.
SIZES = {32: 2, 200: 3, 1000: 2, 4000: 1, 16000: 1, 32000: 1}


def size_of(rng):
    return rng.choices(list(SIZES), SIZES.values())[0]


def ask_in_turn(address, source, seconds, done):
    """A tenant with two requests at a time."""
    def run(seed):
        rng, end = random.Random(seed), time.monotonic() + seconds
        connection = Caller(address, source)
        while time.monotonic() < end:
            if ask(connection, question(size_of(rng), 16, rng))[0] is not None and time.monotonic() < end:
                with done.get_lock():
                    done.value += 1
    threads = [threading.Thread(target=run, args=(f"{source[0]} {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_and_compare(address, source, rate, count, results):
    """A tenant that sends so many requests per second, in an open loop, each after an estimate of it: (tokens, expected
    seconds to the first token, actual, expected in the queue, actual)."""
    connections = [Caller(address, source) for _ in range(4)]
    rng, threads, samples = random.Random(source[0]), [], []

    def run(connection, size, request):
        estimate = next(connection.call(ESTIMATE, h2.field(1, request)))
        first, completed = ask(connection, request)
        expected = number(estimate, ESTIMATED_FIRST_TOKEN)
        if first is not None and expected is not None:
            samples.append((size, expected, timing(completed, FIRST_TOKEN_SECONDS), number(estimate, ESTIMATED_QUEUE) or 0,
                            timing(completed, QUEUE_SECONDS)))
    # Made before: what this process computes meanwhile would lie between an estimate and its request.
    sizes = [size_of(rng) for _ in range(count)]
    requests = [question(size, 16, rng) for size in sizes]
    at = time.monotonic()
    for n, (size, request) in enumerate(zip(sizes, requests)):
        at += rng.expovariate(rate)
        time.sleep(max(0, at - time.monotonic()))
        threads.append(threading.Thread(target=run, args=(connections[n % len(connections)], size, request)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    results.put(samples)


def in_processes(target, *arguments):
    """Runs it for each tenant in a process of its own, at the same time."""
    processes = [multiprocessing.Process(target=target, args=(*more, ), daemon=True) for more in arguments]
    for process in processes:
        process.start()
    return processes


def print_errors(name, samples, step):
    errors = [expected / was - 1 for _, expected, was, _, _ in samples]
    near = [abs(error) <= 0.25 for error in errors]
    or_step = [abs(error) <= 0.25 or abs(expected - was) <= step
               for error, (_, expected, was, _, _) in zip(errors, samples)]
    print(f"{name}: {len(samples)}, first token after {1000 * statistics.median(was for _, _, was, _, _ in samples):.0f} ms in "
          f"the median; within 25 % {sum(near) / len(near):.0%}, or a step {sum(or_step) / len(or_step):.0%}; error p10 "
          f"{quantile(errors, 0.1):+.0%}, median {statistics.median(errors):+.0%}, p90 {quantile(errors, 0.9):+.0%}")


def estimates(args):
    """Several tenants send texts of all lengths, as many as the server can just bear; before each they ask how long it takes."""
    with server_of(args) as server:
        done = multiprocessing.Value("i")
        for process in in_processes(ask_in_turn, *[(server.address, source, args.seconds, done) for source in TENANTS]):
            process.join()
        best = done.value / args.seconds
        results, count = multiprocessing.Queue(), args.questions // len(TENANTS)
        rate = args.load * best / len(TENANTS)
        with Steps(server) as steps:
            processes = in_processes(ask_and_compare, *[(server.address, source, rate, count, results)
                                                        for source in TENANTS])
            samples = sum((results.get() for _ in processes), [])
    print(f"estimates: {len(TENANTS)} tenants, {args.load:.0%} of the {best:.1f} requests/s that they have in a closed loop; "
          f"a step takes {1000 * steps.mean:.0f} ms, p99 {1000 * steps.p99:.0f} ms")
    print_errors("all", samples, steps.mean)
    for size in SIZES:
        some = [sample for sample in samples if sample[0] == size]
        if some:
            print_errors(f"  {size} tokens", some, steps.mean)
    queued = [(expected, was) for _, _, _, expected, was in samples if was > steps.mean]
    if queued:
        print(f"  {len(queued)} waited for more than a step before they ran: within 25 % "
              f"{sum(abs(expected / was - 1) <= 0.25 for expected, was in queued) / len(queued):.0%}")
