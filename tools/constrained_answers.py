"""Sampled answers under JSON schemas, checked by another validator (python3-jsonschema): how many parse and are valid. Run it from
./dev build; the tests run it with fewer answers."""
import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time

import jsonschema

from demo import MODEL
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_ANSWERS = 100  # of one call


def an_object(required=None, **properties):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


TEXT = {"type": "string", "maxLength": 12}
# Each bounds the length of its answers, so that they end before max_new_tokens.
SCHEMAS = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "minimum": -20, "maximum": 12345},
    "multiple": {"type": "integer", "minimum": 0, "maximum": 90, "multipleOf": 7},
    "number": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "text": {"type": "string", "minLength": 2, "maxLength": 20},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}(-[a-z]{1,8})?$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "enum": {"enum": ["yes", "no", None, 3, 0.5, {"why": ["a", "b"]}]},
    "constant": {"const": {"version": 1, "tags": []}},
    "person": an_object(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 130}),
    "optional": an_object(["id"], id={"type": "integer", "minimum": 1, "maximum": 9}, note=TEXT, done={"type": "boolean"}),
    "nullable": an_object(value={"type": ["string", "null"], "maxLength": 5}, unit={"enum": ["m", "s", "kg"]}),
    "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 6},
    "tuple": {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "items": False, "minItems": 2},
    "nested": an_object(party=an_object(name=TEXT, address=an_object(["city"], city=TEXT, zip={"type": "string", "pattern": "[0-9]{5}"})),
                        clauses={"type": "array", "maxItems": 3, "items": an_object(number={"type": "integer", "minimum": 1, "maximum": 99},
                                                                                    title=TEXT)}),
    "any_of": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 5}, an_object(error=TEXT)]},
    "one_of": {"oneOf": [an_object(kind={"const": "a"}, x={"type": "boolean"}), an_object(kind={"const": "b"}, y=TEXT)]},
    "reference": {"$defs": {"money": an_object(amount={"type": "number", "minimum": 0, "maximum": 1000}, currency={"enum": ["EUR", "USD"]})},
                  **an_object(price={"$ref": "#/$defs/money"}, deposit={"$ref": "#/$defs/money"})},
    "map": {"type": "array", "maxItems": 2, "items": {"type": "array", "maxItems": 2, "items": {"enum": [[], [[]], {}]}}},
}


def answers_of(server, schema, count, seed, max_new_tokens=1000):
    """[(text, finish reason)] of `count` sampled answers."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(schema, file)
        file.flush()
        asked = server.folio("--json", "ask", "--question", "And it came to pass", "--json-schema", file.name, "--answers", count,
                             "--temperature", 1, "--seed", seed, "--max-new-tokens", max_new_tokens)
    if asked.returncode != 0:
        raise RuntimeError(asked.stderr)
    texts, reasons = collections.defaultdict(str), {}
    for event in map(json.loads, asked.stdout.splitlines()):
        if count > 1 and "event" not in event:
            continue
        answer, event = event.get("answer", 0), event.get("event", event)
        texts[answer] += event.get("delta", {}).get("text", "")
        if "completed" in event:
            reasons[answer] = event["completed"]["finish_reason"]
    return [(texts[answer], reason) for answer, reason in sorted(reasons.items())]


def invalid(answers, schema):
    """What is wrong with each answer that is cut short, no JSON or not valid."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    wrong = []
    for text, reason in answers:
        if reason != "FINISH_REASON_STOP":
            wrong.append(f"{reason}: {text}")
            continue
        try:
            wrong += [f"{error.message}: {text}" for error in validator.iter_errors(json.loads(text))]
        except json.JSONDecodeError as error:
            wrong.append(f"{error}: {text}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--answers", type=int, default=500, help="of each schema")
    args = parser.parse_args()
    total, wrong, start = 0, [], time.monotonic()
    with RunningServer(args.bin, MODEL, "--kv-bytes=2GiB") as server:
        for name, schema in SCHEMAS.items():
            answers = []
            for seed in range(0, args.answers, MOST_ANSWERS):
                answers += answers_of(server, schema, min(MOST_ANSWERS, args.answers - seed), seed)
            bad = invalid(answers, schema)
            print(f"{name}: {len(answers)} answers, {len(set(answers))} different, {len(bad)} wrong {bad[:2]}", flush=True)
            total += len(answers)
            wrong += bad
    print(f"{total} answers under {len(SCHEMAS)} schemas, {len(wrong)} of them wrong, {time.monotonic() - start:.0f} s")
    return 1 if wrong or total != args.answers * len(SCHEMAS) else 0


if __name__ == "__main__":
    sys.exit(main())
