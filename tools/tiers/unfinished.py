"""Uploads whose client leaves in the middle, and goes on later, maybe with another server."""
import json

import raw_http2 as h2
import stored
from running_server import wait_for

UPLOAD = "/folio.v1.Documents/UploadDocument"
PART_BYTES = 5000
# Fields of UploadDocumentRequest and UploadDocumentEvent, and of what they hold.
HEADER, CHUNK, FINISH = 1, 2, 3
DOCUMENT_ID, UPLOAD_TOKEN = 1, 6
CREATED, READY, NEXT_OFFSET = 1, 4, 2
TOKEN = "a token of 16 bytes or more"


class Upload:
    """One stream of an upload, from its header on."""

    def __init__(self, address, document):
        self.connection = h2.Connection(address)
        self.stream = self.connection.open(UPLOAD)
        self.send(HEADER, h2.field(DOCUMENT_ID, document) + h2.field(UPLOAD_TOKEN, TOKEN))
        created = dict(h2.fields(self.event(CREATED)))
        self.offset = created.get(NEXT_OFFSET, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def send(self, kind, request):
        self.connection.write(self.stream, h2.message(h2.field(kind, request)))

    def event(self, kind):
        """The next event of this kind; raises Closed where the stream ends before."""
        changed, messages = self.connection.changed, self.connection.messages
        while True:
            with changed:
                changed.wait_for(lambda: messages.get(self.stream) or self.stream in self.connection.ended
                                 or self.connection.closed, 300)
                batch = messages.pop(self.stream, [])
            if not batch:
                raise h2.Closed
            for event in batch:
                for number, value in h2.fields(event):
                    if number == kind:
                        return value

    def send_text(self, text, end):
        """Of all of the text the part up to byte `end` that the server has not."""
        while self.offset < end:
            part = text[self.offset:min(end, self.offset + PART_BYTES)]
            self.send(CHUNK, h2.field(1, self.offset) + h2.field(2, part))
            self.offset += len(part)

    def finish(self):
        self.send(FINISH, b"")
        return self.event(READY)


def begin(server, document, text, end):
    """Uploads a part of the text and leaves, once the part is in the cache and on disk. Returns the document then."""
    with Upload(server.address, document) as upload:
        upload.send_text(text, end)
        wait_for(lambda: int(state(server, document)["size_bytes"]) >= end, "the server has the text")
    wait_for(lambda: int(state(server, document)["saved_size_bytes"]) > 0, "the text is on disk")
    return state(server, document)


def go_on(server, document, text):
    """Uploads the rest. Returns where it began."""
    with Upload(server.address, document) as upload:
        offset = upload.offset
        upload.send_text(text, len(text))
        upload.finish()
    return offset


def state(server, document):
    return json.loads(stored.check(server.folio("--json", "docs", "show", document)).stdout)
