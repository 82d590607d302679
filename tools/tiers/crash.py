"""Servers that are killed at random moments of uploads, unfinished ones among them, saves, answers and evictions, one after
the other in one directory."""
import random
import threading
import time

import raw_http2 as h2
import stored
import unfinished
from larger import report
from running_server import wait_for
from stored import MIB

ROUNDS, SEED = 200, 1
NUM_TEXTS, TEXT_CHARS = 4, 6000
# Of an upload: the tokenizer's window, before which there is no cut where it could be saved, and some more.
LEAST_BYTES = 4500
# Room for a few of the documents: others leave memory, and the disk.
FLAGS = [f"--kv-bytes={8 * MIB}", f"--kv-disk-bytes={24 * MIB}", f"--store-bytes={96 * MIB}"]


class Crashes:
    def __init__(self, bin_dir, directory, seed):
        self.store = stored.Store(bin_dir, directory, *FLAGS)
        self.random = random.Random(seed)
        self.bin_dir, self.directory = bin_dir, directory
        self.saved = {}  # document: the number of its text
        self.deleted = set()  # or about to be
        self.unfinished = {}  # upload: the number of its text, and how much was said to be saved
        self.num_resumed = 0
        self.faults, self.num_documents, self.num_checked = [], 0, 0
        self.lock, self.killed, self.clients = threading.Lock(), False, []  # of the server that runs
        self.paths = [directory / f"text-{number}.txt" for number in range(NUM_TEXTS)]
        for number, path in enumerate(self.paths):
            path.write_text(stored.words(number, TEXT_CHARS))
        with stored.RunningServer(bin_dir, stored.MODEL) as server:
            self.answers = [self.answer_about(server, path) for path in self.paths]

    @staticmethod
    def answer_about(server, path):
        stored.upload(server, path, path.stem)
        return stored.ask(server, path.stem)[0]

    def check(self, server):
        """Everything that was said to be saved is there and answers as it did."""
        there = {document["document_id"]: document for document in stored.listed(server)}
        for document, text in self.saved.items():
            if document in self.deleted:
                continue
            self.num_checked += 1
            if document not in there or not there[document]["saved"]:
                self.faults.append(f"{document} was saved and is not there")
            elif stored.ask(server, document)[0] != self.answers[text]:
                self.faults.append(f"{document} answers otherwise than before")
        for document in there:
            if document in self.deleted:
                server.folio("docs", "delete", document)
        self.check_unfinished(server, there)

    def check_unfinished(self, server, there):
        """Uploads go on where they were saved, or later, and answer like others."""
        for document, (text, saved_bytes) in self.unfinished.items():
            if document not in there or int(there[document]["size_bytes"]) < saved_bytes:
                self.faults.append(f"of upload {document} {saved_bytes} bytes were saved and are not there")
                continue
            self.num_resumed += 1
            unfinished.go_on(server, document, self.paths[text].read_bytes())
            if stored.ask(server, document)[0] != self.answers[text]:
                self.faults.append(f"{document} answers otherwise than one that was uploaded in one go")
            stored.check(server.folio("docs", "delete", document))
        self.unfinished = {}

    def client(self, server, *args):
        """Whether the client succeeded; it does not outlive the server."""
        with self.lock:
            if self.killed:
                return False
            process = server.start_folio(*args)
            self.clients.append(process)
        process.communicate()
        return process.returncode == 0

    def leave_unfinished(self, server, document, text, chance):
        data = self.paths[text].read_bytes()
        try:
            begun = unfinished.begin(server, document, data, chance.randrange(LEAST_BYTES, len(data)))
            self.unfinished[document] = text, int(begun["saved_size_bytes"])
        except (RuntimeError, OSError, ValueError, h2.Closed):
            pass  # the server is gone

    def work(self, server, seed):
        """Until the server is gone."""
        chance = random.Random(seed)
        while not self.killed:
            if chance.random() < 0.3:
                document = f"u{seed}-{chance.getrandbits(32)}"
                self.leave_unfinished(server, document, chance.randrange(NUM_TEXTS), chance)
                continue
            document, text = f"d{seed}-{chance.getrandbits(32)}", chance.randrange(NUM_TEXTS)
            if not self.client(server, "upload", self.paths[text], "--id", document):
                continue
            self.num_documents += 1
            if self.client(server, "docs", "save", document):
                self.saved[document] = text
            kept = sorted(self.saved.keys() - self.deleted)
            for other in chance.sample(kept, min(2, len(kept))):
                self.client(server, "ask", "--document", other, "--question", "Why?", "--max-new-tokens", 2)
            if len(kept) > 8:
                old = chance.choice(kept)
                self.deleted.add(old)
                self.client(server, "docs", "delete", old)

    def round(self, number):
        with self.store.server() as server:
            self.check(server)
            self.killed, self.clients = False, []
            workers = [threading.Thread(target=self.work, args=(server, 2 * number + n)) for n in range(2)]
            for worker in workers:
                worker.start()
            num_saved = len(self.saved)
            if number % 2 == 0:
                wait_for(lambda: len(self.saved) > num_saved, "a document is saved")
            time.sleep(self.random.uniform(0.02, 1))  # the moment is the point
            server.process.kill()
            with self.lock:
                self.killed = True
                for process in self.clients:
                    process.kill()
            server.process.wait()
            for worker in workers:
                worker.join()

    def finish(self):
        """Nothing is left when all documents are deleted."""
        with self.store.server() as server:
            self.check(server)
            for document in stored.listed(server):
                stored.check(server.folio("docs", "delete", document["document_id"]))
            server.stop()
        left = {name: files for name, files in self.store.files().items() if files}
        if left:
            self.faults.append(f"left on disk: {left}")


def run(bin_dir, directory, rounds, seed=SEED):
    crashes = Crashes(bin_dir, directory, seed)
    for number in range(rounds):
        num_known = len(crashes.faults)
        crashes.round(number)
        for fault in crashes.faults[num_known:]:  # it takes a while until all rounds are done
            print(f"round {number}: {fault}", flush=True)
    crashes.finish()
    return crashes


def measure(bin_dir, directory, _limits):
    crashes = run(bin_dir, directory, ROUNDS)
    figures = (f"{ROUNDS} times kill -9, {crashes.num_documents} documents, {len(crashes.saved)} of them reported saved, "
               f"{crashes.num_checked} answers compared after restarts, {crashes.num_resumed} unfinished uploads gone on with")
    return report("crash", figures, crashes.faults)
