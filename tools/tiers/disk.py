"""What the disk below a directory can do: the ceilings of the rows."""
import concurrent.futures
import dataclasses
import os
import random
import time

FILE_BYTES = 512 << 20
SLICE_BYTES = 4096  # of folio-tiny
SLICE_READS = 20_000
PIECE = 4 << 20


@dataclasses.dataclass
class Limits:
    write: float  # bytes per second, all of them in sequence, cached by the system or not as it likes
    read: float  # by as many threads as there are processors
    slices: float  # bytes per second of slices at random, one after the other

    def __str__(self):
        return (f"writes {self.write / 1e9:.2f} GB/s, reads {self.read / 1e9:.2f} GB/s, slices of {SLICE_BYTES >> 10} KiB at "
                f"random {self.slices / 1e9:.2f} GB/s (one at a time); the system's cache is on")


def timed(work):
    started = time.monotonic()
    work()
    return time.monotonic() - started


def read_all(file, threads):
    """The whole file, a part by each thread, into memory that is there."""
    def read_part(part):
        room = bytearray(PIECE)
        for at in range(part * PIECE, FILE_BYTES, threads * PIECE):
            os.preadv(file, [room], at)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(read_part, range(threads)))


def measure(directory):
    path = directory / "disk"
    piece = random.Random(1).randbytes(PIECE)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        offsets = range(0, FILE_BYTES, PIECE)
        write = timed(lambda: [os.pwrite(file, piece, at) for at in offsets])
        read = min(timed(lambda: read_all(file, len(os.sched_getaffinity(0)))) for _ in range(3))
        order = random.Random(2)
        places = [order.randrange(FILE_BYTES // SLICE_BYTES) * SLICE_BYTES for _ in range(SLICE_READS)]
        slices = timed(lambda: [os.pread(file, SLICE_BYTES, at) for at in places])
    finally:
        os.close(file)
        path.unlink()
    return Limits(FILE_BYTES / write, FILE_BYTES / read, SLICE_READS * SLICE_BYTES / slices)
