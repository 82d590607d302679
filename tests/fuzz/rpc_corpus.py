"""Seeds of rpc_fuzz: a request of each method, or the requests of its stream, as tests/fuzz/rpc_target.h says."""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from raw_http2 import field, varint  # noqa: E402

# In the order of the services and their methods in proto/folio/v1, which tests/server/rpc_corpus_test.cc checks.
METHODS = ["Generate", "AskMany", "Score", "Estimate", "UploadDocument", "GetDocument", "ListDocuments", "DeleteDocument",
           "SaveDocument", "UpdateDocument", "WatchDocument", "Tokenize", "Detokenize", "GetServerInfo", "ListStrategies",
           "ListRequests", "CancelRequest"]
BOOK, DRAFT, TOKEN = field(1, "book"), field(1, "draft"), "a secret of the test"


def real(number, value):
    """A float field."""
    return varint(number << 3 | 5) + struct.pack("<f", value)


def label(number, key, value):
    return field(number, field(1, key) + field(2, value))


IDS = field(1, bytes([5, 6, 7]))
FULL, LM_INFINITE = field(1, b""), field(2, field(1, 2) + field(2, 100) + field(3, 100))
SAMPLING = field(6, real(1, 0.8) + field(2, 40) + real(3, 0.9) + field(6, 7))
STOPPING = field(7, field(1, 5) + field(2, "end") + field(3, 9) + field(4, 1))
RESPONSE = field(8, field(1, 1) + field(2, 3) + field(3, 100))
HISTORY = field(12, field(1, "Who?") + field(2, "He."))
QUESTION = field(4, BOOK + field(2, "Who is it?"))
REQUEST = field(1, "an id") + QUESTION + field(5, LM_INFINITE) + SAMPLING + STOPPING + RESPONSE + field(15, 1)

# {method: requests; of a method that takes a stream lists of them}
REQUESTS = {
    "Generate": [REQUEST, field(2, "hello") + STOPPING, field(3, IDS) + field(5, FULL), field(2, "hi") + field(11, "Be brief.") + HISTORY],
    "AskMany": [field(1, field(4, BOOK) + STOPPING) + field(2, field(1, "Who?")) + field(2, field(2, IDS)) + field(3, 2)],
    "Score": [[field(1, field(1, FULL) + field(3, 64) + field(4, 1)), field(2, "some text"), field(2, "and more")],
              [field(1, b""), field(3, IDS)]],
    "Estimate": [field(1, REQUEST), field(2, field(1, 1000) + field(2, LM_INFINITE))],
    "UploadDocument": [
        [field(1, field(1, "new") + field(2, "a name") + field(6, TOKEN) + field(7, 11) + field(8, field(1, 60)) + label(10, "k", "v")),
         field(2, field(2, "some text, ")), field(2, field(1, 11) + field(2, "more")), field(3, field(1, 15))],
        [field(1, DRAFT + field(6, TOKEN)), field(2, field(1, 10) + field(2, "more")), field(3, b"")],
        [field(1, field(4, 1) + field(3, LM_INFINITE)), field(2, field(1, 3) + field(2, "gap"))]],
    "GetDocument": [BOOK, field(1, "none")],
    "ListDocuments": [field(1, 2) + field(2, "book"), label(3, "k", "v") + field(4, 1)],
    "DeleteDocument": [BOOK, DRAFT],
    "SaveDocument": [BOOK],
    "UpdateDocument": [BOOK + field(2, field(1, 60)) + field(3, 1) + label(4, "k", "v") + field(5, "other")],
    "WatchDocument": [BOOK + field(2, 1), DRAFT],
    "Tokenize": [field(1, "some text") + field(2, 1)],
    "Detokenize": [field(1, bytes([5, 6, 7]))],
    "GetServerInfo": [b""],
    "ListStrategies": [b""],
    "ListRequests": [field(1, 10)],
    "CancelRequest": [field(1, "an id")],
}


def seeds():
    """[(name of the file, input)]"""
    found = []
    for method, requests in REQUESTS.items():
        for n, request in enumerate(requests):
            pieces = request if isinstance(request, bytes) else b"".join(struct.pack("<H", len(one)) + one for one in request)
            found.append((f"{method}-{n}", bytes([METHODS.index(method)]) + pieces))
    return found
