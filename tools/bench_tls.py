"""What TLS costs: processor time of the server for each token that it streams, with and without, by the bundled model. Two servers
take turns; the load is many short prompts with long answers. Run it from ./dev build."""
import argparse
import json
import pathlib
import subprocess
import tempfile

from demo import MODEL
from interleaved import check_rounds, rounds_argument, spread
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
LISTENER = "listener"  # the thread that reads and writes the sockets of clients


def cpu_seconds(server):
    """(of the listener, of all threads): nanoseconds on a processor, as the scheduler counts them."""
    listener = total = 0
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        try:
            spent = int((task / "schedstat").read_text().split()[0])
            name = (task / "comm").read_text().strip()
        except OSError:  # a thread that has ended
            continue
        total += spent
        listener += spent if name == LISTENER else 0
    return listener / 1e9, total / 1e9


def load(server, args, *flags):
    """The tokens that were streamed."""
    done = subprocess.run([args.bin / "folio-loadtest", f"--server={server.address}", f"--concurrency={args.streams}",
                           f"--num-requests={args.requests}", "--prompt-tokens=16:1", f"--output-tokens={args.new_tokens}:1",
                           "--json", *flags], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    if result["completed"] != args.requests:
        raise RuntimeError(f"{result['completed']} of {args.requests} answers: {result['status_codes']}")
    return args.requests * args.new_tokens


def microseconds(server, args, *flags):
    """(of the listener, of all threads), for each token."""
    before = cpu_seconds(server)
    tokens = load(server, args, *flags)
    return [1e6 * (after - earlier) / tokens for earlier, after in zip(before, cpu_seconds(server))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=256)
    rounds_argument(parser, 9)
    args = parser.parse_args()
    check_rounds(parser, args.rounds)
    with tempfile.TemporaryDirectory() as directory:
        cert, key = f"{directory}/tls.crt", f"{directory}/tls.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                        "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        with RunningServer(args.bin, MODEL, "--kv-bytes=1GiB") as plain, \
                RunningServer(args.bin, MODEL, "--kv-bytes=1GiB", f"--tls-cert={cert}", f"--tls-key={key}",
                              client_environment={"FOLIO_TLS_CA": cert}) as secure:
            of_tls = ("--tls-ca", cert)
            microseconds(plain, args), microseconds(secure, args, *of_tls)  # both warm up
            pairs = [(microseconds(plain, args), microseconds(secure, args, *of_tls)) for _ in range(args.rounds)]
    print(f"{args.streams} streams, {args.rounds} rounds of {args.requests} answers of {args.new_tokens} tokens; "
          "microseconds of processor time for each token, median [least..most]")
    for i, what in enumerate(("listener", "all threads")):
        one, other = [plain[i] for plain, _ in pairs], [secure[i] for _, secure in pairs]
        print(f"{what}: plaintext {spread(one, 1)}, TLS {spread(other, 1)}, "
              f"difference {spread([b - a for a, b in zip(one, other)], 1)}")


if __name__ == "__main__":
    main()
