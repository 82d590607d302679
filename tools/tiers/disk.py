"""What the memory and the disk below a directory can do: the ceilings of the rows."""
import concurrent.futures
import contextlib
import dataclasses
import os
import random
import time

FILE_BYTES = 512 << 20
PIECE = 4 << 20
READERS = 8  # as many as the engine reads with (SegmentHome)
RANDOM_BYTES = 96 << 20  # that are read at random
# Slices of folio-tiny and of the TinyLlama shape, and what a chunk of the latter has for one head.
SLICES = (4 << 10, 16 << 10, 64 << 10)


@dataclasses.dataclass
class Limits:
    """Bytes per second."""
    copy: float  # from memory to memory, one thread
    write: float  # all of them in sequence, cached by the system or not as it likes
    cached: float  # of a file that the system has in memory, by as many threads as there are processors
    read: float  # the same from the disk
    slices: dict  # of so many bytes at random from the disk, READERS at a time

    def __str__(self):
        slices = ", ".join(f"{rate / 1e9:.2f} of {size >> 10} KiB" for size, rate in self.slices.items())
        return (f"copies {self.copy / 1e9:.2f} GB/s; file cached by the system: writes {self.write / 1e9:.2f}, reads {self.cached / 1e9:.2f}; "
                f"not cached: reads in sequence {self.read / 1e9:.2f}, at random {slices} ({READERS} at a time)")


def timed(work):
    started = time.monotonic()
    work()
    return time.monotonic() - started


def in_threads(count, work):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


def read_all(file, threads):
    """The whole file, a part by each thread, into memory that is there."""
    def read_part(part):
        room = bytearray(PIECE)
        for at in range(part * PIECE, FILE_BYTES, threads * PIECE):
            os.preadv(file, [room], at)
    in_threads(threads, read_part)


def read_slices(file, places, size):
    def read_part(part):
        room = bytearray(size)
        for at in places[part::READERS]:
            os.preadv(file, [room], at)
    in_threads(READERS, read_part)


def forget(file):
    """The system forgets what it has read of the file; all of it is on disk."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def uncached_rate(file):
    """Bytes per second in sequence: the best of three times."""
    def read():
        forget(file)
        return timed(lambda: read_all(file, len(os.sched_getaffinity(0))))
    return FILE_BYTES / min(read() for _ in range(3))


def random_rate(file, size):
    places = [n * size for n in random.Random(size).sample(range(FILE_BYTES // size), RANDOM_BYTES // size)]
    forget(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    seconds = timed(lambda: read_slices(file, places, size))
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL)
    return len(places) * size / seconds


def copy_rate():
    source, target = bytearray(FILE_BYTES // 2), bytearray(FILE_BYTES // 2)
    return len(source) / min(timed(lambda: target.__setitem__(slice(None), source)) for _ in range(3))


@contextlib.contextmanager
def written_file(directory):
    """A file of random bytes that is on disk, and the seconds that writing took before it was."""
    path = directory / "disk"
    piece = random.Random(1).randbytes(PIECE)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        seconds = timed(lambda: [os.pwrite(file, piece, at) for at in range(0, FILE_BYTES, PIECE)])
        os.fdatasync(file)
        yield file, seconds
    finally:
        os.close(file)
        path.unlink()


def measure(directory):
    with written_file(directory) as (file, seconds):
        cached = FILE_BYTES / min(timed(lambda: read_all(file, len(os.sched_getaffinity(0)))) for _ in range(3))
        slices = {size: max(random_rate(file, size) for _ in range(2)) for size in SLICES}
        return Limits(copy_rate(), FILE_BYTES / seconds, cached, uncached_rate(file), slices)
