"""What RFC 9113 forbids, and what it has a server skip: one function each, on a connection of its own. `rule` is the section,
`ends` what has to end, `grpc` what gRPC 1.51 ends instead: NOTHING where it skips what it should refuse."""
import collections
import struct

from http2_wire import GRPC_HEADERS, PREFACE, QUESTION, literal, raw_frame
from raw_http2 import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
                       WINDOW_UPDATE)

PRIORITY, PUSH_PROMISE, UNKNOWN = 2, 5, 0xbe
PADDED, HAS_PRIORITY = 8, 0x20
CONNECTION, STREAM, NOTHING = "connection", "stream", "nothing"
FIRST, SECOND = 1, 3
LARGEST_WINDOW = 2**31 - 1

Case = collections.namedtuple("Case", "name rule ends grpc settings act")
CASES = []


def case(rule, ends, grpc=None, settings=True):
    def add(act):
        CASES.append(Case(act.__name__, rule, ends, grpc or ends, settings, act))
        return act
    return add


def u32(value):
    return struct.pack(">I", value)


def setting(number, value):
    return struct.pack(">HI", number, value)


def block(wire, *changes, without=()):
    """The header block of a call, with fields added and left out."""
    return wire.encoder.encode([field for field in GRPC_HEADERS if field[0] not in without] + list(changes))


# ---- 3.4: the preface ----

@case("3.4", CONNECTION, settings=False)
def http_1_request(wire):
    wire.send(b"GET / HTTP/1.1\r\nHost: folio\r\n\r\n")


@case("3.4", CONNECTION, settings=False)
def broken_preface(wire):
    wire.send(PREFACE[:-2] + b"??" + raw_frame(SETTINGS, 0, 0))


@case("3.4", CONNECTION, settings=False)
def no_settings_after_the_preface(wire):
    wire.send(PREFACE)
    wire.open(FIRST)


# ---- 4.1, 5.5: what is not known is skipped ----

@case("5.5", NOTHING)
def unknown_frame_type(wire):
    wire.send(raw_frame(UNKNOWN, 0xff, 0, b"whatever"))


@case("4.1", NOTHING, grpc=CONNECTION)
def unknown_flags(wire):
    wire.send(raw_frame(PING, 0xfe & ~ACK, 0, bytes(8)))


@case("4.1", NOTHING)
def reserved_bit(wire):
    wire.send(raw_frame(WINDOW_UPDATE, 0, 1 << 31, u32(1)))


@case("6.5.2", NOTHING)
def unknown_setting(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, setting(0x99, 7)))


@case("5.5", CONNECTION)
def unknown_frame_inside_a_header_block(wire):
    wire.open(FIRST, flags=0)
    wire.send(raw_frame(UNKNOWN, 0, FIRST, b"whatever"))


# ---- 4.2: sizes of frames ----

@case("4.2", CONNECTION)
def data_larger_than_a_frame_may_be(wire):
    most = wire.settings.get(5, 1 << 14)
    wire.open(FIRST)
    wire.send(raw_frame(DATA, 0, FIRST, bytes(most + 1)))


@case("4.2", CONNECTION)
def headers_larger_than_a_frame_may_be(wire):
    most = wire.settings.get(5, 1 << 14)
    wire.send(raw_frame(HEADERS, END_HEADERS, FIRST, block(wire) + literal("x-filler", "a" * most)))


@case("6.5", CONNECTION)
def half_a_setting(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, bytes(3)))


@case("6.5", CONNECTION)
def acknowledgement_of_settings_with_content(wire):
    wire.send(raw_frame(SETTINGS, ACK, 0, setting(4, 1000)))


@case("6.7", CONNECTION)
def short_ping(wire):
    wire.send(raw_frame(PING, 0, 0, bytes(6)))


@case("6.9", CONNECTION)
def short_window_update(wire):
    wire.send(raw_frame(WINDOW_UPDATE, 0, 0, bytes(3)))


@case("6.4", CONNECTION)
def short_reset(wire):
    wire.open(FIRST)
    wire.send(raw_frame(RST_STREAM, 0, FIRST, bytes(3)))


@case("6.3", STREAM, grpc=NOTHING)
def short_priority(wire):
    wire.open(FIRST)
    wire.send(raw_frame(PRIORITY, 0, FIRST, bytes(4)))


@case("6.8", CONNECTION)
def short_goaway(wire):
    wire.send(raw_frame(GOAWAY, 0, 0, bytes(4)))


# ---- 5.1: states of streams ----

@case("5.1", CONNECTION, grpc=NOTHING)
def data_on_an_idle_stream(wire):
    wire.send(raw_frame(DATA, 0, FIRST, QUESTION))


@case("5.1", CONNECTION, grpc=NOTHING)
def reset_of_an_idle_stream(wire):
    wire.send(raw_frame(RST_STREAM, 0, FIRST, u32(8)))


@case("5.1", CONNECTION, grpc=NOTHING)
def window_update_on_an_idle_stream(wire):
    wire.send(raw_frame(WINDOW_UPDATE, 0, FIRST, u32(100)))


@case("5.1", STREAM, grpc=NOTHING)
def data_after_the_end_of_the_stream(wire):
    wire.ask(FIRST)
    wire.send(raw_frame(DATA, 0, FIRST, QUESTION))


@case("5.1", STREAM, grpc=NOTHING)
def headers_after_the_end_of_the_stream(wire):
    wire.ask(FIRST)
    wire.open(FIRST, flags=END_HEADERS | END_STREAM)


@case("5.1", STREAM, grpc=NOTHING)
def data_after_a_reset(wire):
    wire.open(FIRST)
    wire.send(raw_frame(RST_STREAM, 0, FIRST, u32(8)) + raw_frame(DATA, END_STREAM, FIRST, QUESTION))


@case("5.1.1", CONNECTION, grpc=NOTHING)
def stream_of_an_even_number(wire):
    wire.open(2)


@case("5.1.1", CONNECTION, grpc=NOTHING)
def stream_of_a_smaller_number(wire):
    wire.ask(SECOND)
    wire.ask(FIRST)


@case("5.3.1", STREAM, grpc=NOTHING)
def priority_on_itself(wire):
    wire.open(FIRST)
    wire.send(raw_frame(PRIORITY, 0, FIRST, u32(FIRST) + b"\x10"))


@case("5.3.1", STREAM, grpc=NOTHING)
def headers_that_depend_on_themselves(wire):
    wire.open(FIRST, flags=END_HEADERS | HAS_PRIORITY, block=u32(FIRST) + b"\x10" + block(wire))


# ---- 6: frames on streams where they do not belong ----

def on_no_stream(kind, payload, flags=0):
    return lambda wire: wire.send(raw_frame(kind, flags, 0, payload))


def on_a_stream(kind, payload):
    def act(wire):
        wire.open(FIRST)
        wire.send(raw_frame(kind, 0, FIRST, payload))
    return act


for name, rule, grpc, act in (
        ("data_on_no_stream", "6.1", NOTHING, on_no_stream(DATA, b"text")),
        ("headers_on_no_stream", "6.2", NOTHING, lambda wire: wire.open(0)),
        ("priority_on_no_stream", "6.3", NOTHING, on_no_stream(PRIORITY, bytes(5))),
        ("reset_of_no_stream", "6.4", NOTHING, on_no_stream(RST_STREAM, u32(8))),
        ("continuation_on_no_stream", "6.10", CONNECTION, on_no_stream(CONTINUATION, b"", END_HEADERS)),
        ("settings_on_a_stream", "6.5", CONNECTION, on_a_stream(SETTINGS, setting(4, 100))),
        ("ping_on_a_stream", "6.7", NOTHING, on_a_stream(PING, bytes(8))),
        ("goaway_on_a_stream", "6.8", NOTHING, on_a_stream(GOAWAY, bytes(8))),
        ("push_promise_of_a_client", "8.4", NOTHING, on_a_stream(PUSH_PROMISE, u32(2)))):
    act.__name__ = name
    case(rule, CONNECTION, grpc=grpc)(act)


# ---- 6.1, 6.2: padding ----

@case("6.1", CONNECTION, grpc=STREAM)
def more_padding_than_data(wire):
    wire.open(FIRST)
    wire.send(raw_frame(DATA, PADDED, FIRST, b"\x09abc"))


@case("6.2", CONNECTION)
def more_padding_than_headers(wire):
    wire.open(FIRST, flags=END_HEADERS | PADDED, block=b"\xff" + block(wire))


# ---- 6.5.2: values of settings ----

@case("6.5.2", CONNECTION)
def push_is_neither_on_nor_off(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, setting(2, 2)))


@case("6.5.2", CONNECTION)
def initial_window_above_the_largest(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, setting(4, LARGEST_WINDOW + 1)))


@case("6.5.2", CONNECTION)
def frames_smaller_than_the_smallest(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, setting(5, (1 << 14) - 1)))


@case("6.5.2", CONNECTION)
def frames_larger_than_the_largest(wire):
    wire.send(raw_frame(SETTINGS, 0, 0, setting(5, 1 << 24)))


# ---- 6.9: windows ----

@case("6.9", CONNECTION)
def window_update_of_nothing(wire):
    wire.send(raw_frame(WINDOW_UPDATE, 0, 0, u32(0)))


@case("6.9", STREAM)
def window_update_of_nothing_on_a_stream(wire):
    wire.open(FIRST)
    wire.send(raw_frame(WINDOW_UPDATE, 0, FIRST, u32(0)))


@case("6.9.1", CONNECTION, grpc=NOTHING)
def window_of_the_connection_overflows(wire):
    wire.send(raw_frame(WINDOW_UPDATE, 0, 0, u32(LARGEST_WINDOW)) * 2)


@case("6.9.1", STREAM, grpc=NOTHING)
def window_of_a_stream_overflows(wire):
    wire.open(FIRST)
    wire.send(raw_frame(WINDOW_UPDATE, 0, FIRST, u32(LARGEST_WINDOW)) * 2)


@case("6.9.2", CONNECTION, grpc=NOTHING)
def settings_make_a_window_overflow(wire):
    wire.open(FIRST)
    wire.send(raw_frame(WINDOW_UPDATE, 0, FIRST, u32(1 << 30)) + raw_frame(SETTINGS, 0, 0, setting(4, LARGEST_WINDOW)))


@case("6.9", STREAM)
def more_data_than_the_window(wire):
    wire.open(FIRST)
    piece = bytes(wire.settings.get(5, 1 << 14))
    window = wire.settings.get(4, 65535)
    for _ in range(window // len(piece) + 600):
        wire.send(raw_frame(DATA, 0, FIRST, piece))


# ---- 6.10: header blocks of several frames ----

@case("6.10", CONNECTION)
def continuation_without_headers(wire):
    wire.send(raw_frame(CONTINUATION, END_HEADERS, FIRST, b""))


@case("6.10", CONNECTION)
def continuation_after_the_end_of_the_block(wire):
    wire.open(FIRST)
    wire.send(raw_frame(CONTINUATION, END_HEADERS, FIRST, literal("x-late", "1")))


@case("6.10", CONNECTION)
def continuation_on_another_stream(wire):
    wire.open(FIRST, flags=0)
    wire.send(raw_frame(CONTINUATION, END_HEADERS, SECOND, literal("x-other", "1")))


@case("6.10", CONNECTION)
def ping_inside_a_header_block(wire):
    wire.open(FIRST, flags=0)
    wire.send(raw_frame(PING, 0, 0, bytes(8)))


@case("6.10", CONNECTION)
def headers_inside_a_header_block(wire):
    wire.open(FIRST, flags=0)
    wire.open(SECOND)


# ---- 4.3: compression of headers (RFC 7541) ----

def compressed(name, data, grpc=CONNECTION):
    def act(wire):
        wire.open(FIRST, block=data)
    act.__name__ = name
    case("4.3", CONNECTION, grpc=grpc)(act)


compressed("index_0_of_the_table", b"\x80")
compressed("index_beyond_the_table", b"\xff\x80\x80\x04")
compressed("integer_without_end", b"\xff" + b"\xff" * 12)
compressed("string_that_is_cut", b"\x00\x0aabc")
compressed("huffman_code_that_is_cut", literal("x", "y") + b"\x00\x01z\x81\x00", grpc=STREAM)
compressed("table_larger_than_allowed", b"\x3f\xe1\xff\x7f" + literal("x", "y"))


# ---- 8.1 to 8.3: what makes no request ----

def malformed(rule, name, *changes, without=(), first=(), grpc=NOTHING):
    def act(wire):
        fields = wire.encoder.encode(first) if first else b""
        wire.open(FIRST, block=fields + block(wire, *changes, without=without))
        wire.send(raw_frame(DATA, END_STREAM, FIRST, QUESTION))
    act.__name__ = name
    case(rule, STREAM, grpc=grpc)(act)


malformed("8.2.1", "name_in_capitals", ("X-Capital", "1"))
malformed("8.2.1", "newline_in_a_value", ("x-value", "a\r\nb: c"))
malformed("8.2.2", "connection_field", ("connection", "keep-alive"))
malformed("8.2.2", "te_other_than_trailers", ("te", "gzip"), without=("te",), grpc=STREAM)
malformed("8.3", "pseudo_field_after_others", (":path", "/folio.v1.Inference/Generate"), without=(":path",))
malformed("8.3", "pseudo_field_that_is_none", (":unknown", "1"))
malformed("8.3", "pseudo_field_of_answers", (":status", "200"))
malformed("8.3.1", "method_twice", first=[(":method", "POST")])
malformed("8.3.1", "path_twice", first=[(":path", "/folio.v1.Control/GetServerInfo")])
malformed("8.3.1", "no_method", without=(":method",), grpc=STREAM)
malformed("8.3.1", "no_scheme", without=(":scheme",), grpc=STREAM)
malformed("8.3.1", "no_path", without=(":path",), grpc=STREAM)
malformed("8.1.1", "content_length_of_something_else", ("content-length", "3"))


@case("8.1", STREAM)
def trailers_without_end(wire):
    wire.open(FIRST)
    # At once: to the question alone the answer may come, which ends the stream, before the trailers do.
    wire.send(raw_frame(DATA, 0, FIRST, QUESTION) + wire.header_frame(FIRST, fields=[("x-trailer", "1")]))


@case("8.3", STREAM, grpc=NOTHING)
def pseudo_field_in_trailers(wire):
    wire.open(FIRST)
    wire.send(raw_frame(DATA, 0, FIRST, QUESTION))
    wire.open(FIRST, fields=[(":path", "/"), ("x-trailer", "1")], flags=END_HEADERS | END_STREAM)


# ---- 10.5: floods ----

def flood(name, frame, times=20_000, opens=False):
    def act(wire):
        if opens:
            wire.open(FIRST)
        for _ in range(0, times, 1000):
            wire.send(frame * 1000)
    act.__name__ = name
    case("10.5", CONNECTION)(act)


flood("flood_of_pings", raw_frame(PING, 0, 0, bytes(8)))
flood("flood_of_acknowledged_pings", raw_frame(PING, ACK, 0, bytes(8)))
flood("flood_of_settings", raw_frame(SETTINGS, 0, 0))
flood("flood_of_acknowledged_settings", raw_frame(SETTINGS, ACK, 0))
flood("flood_of_priorities", raw_frame(PRIORITY, 0, FIRST, bytes(5)))
flood("flood_of_empty_data", raw_frame(DATA, 0, FIRST), opens=True)


@case("10.5", CONNECTION)
def flood_of_resets(wire):
    for first in range(0, 20_000, 500):
        for n in range(first, first + 500):
            stream = 2 * n + 1
            wire.open(stream)
            wire.send(raw_frame(RST_STREAM, 0, stream, u32(8)))


@case("10.5.1", CONNECTION)
def headers_that_do_not_end(wire):
    wire.open(FIRST, flags=0)
    wire.send(raw_frame(CONTINUATION, 0, FIRST, literal("x-filler", "a" * 16000)) * 10)
