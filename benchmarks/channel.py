"""Fuzz the channel of untrusted kernels: malformed messages give no crash, no hang and no verdict.

    python benchmarks/channel.py [--messages 1000000] [--seed 0] [--out benchmarks/results/channel.json]

Each message is a right answer with fields overwritten, bytes changed, cut off or made longer, or bytes alone. Reading
it has to end in a MalformedError, at the end of the stream, or in an answer in our form, which is what a kernel could
have returned and is judged like it. Whatever else is raised, or more memory asked for than is allowed, ends this with
status 1.
"""

import argparse
import json
import struct
import time
from collections import Counter
from datetime import UTC, datetime
from math import prod
from pathlib import Path

import numpy as np

from verify_norm import __version__
from verify_norm.running.untrusted import wire

NAMES, MOST, NUMBER = ("y", "rstd"), 1000, 7
RECORD, SECOND = wire.HEADER.size, wire.HEADER.size + wire.RECORD.size
FIELDS = [(0, "Q"), (8, "Q"), (16, "H"), (18, "H"), (20, "I"), (24, "Q")]
FIELDS += [(start + at, form) for start in (RECORD, SECOND) for at, form in enumerate("BBBB")]
FIELDS += [(start + 8 * at, "Q") for start in (RECORD, SECOND) for at in range(1, 10)]
SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8}


def right() -> bytes:
    """Return a right answer with two outputs and notes."""
    raw = {0: wire.Raw("float16", (2, 3), bytearray(12)), 1: wire.Raw("float32", (2,), bytearray(8))}
    return b"".join(wire.packed(NUMBER, raw, {"effects": ("a", "b"), "damage": (("x", "in", 1, 0, "y"),)}))


def malformed(rng: np.random.Generator, message: bytes) -> bytes:
    """Return a message that may be wrong in several ways."""
    data, way = bytearray(message), int(rng.integers(8))
    if way == 0:
        return rng.bytes(int(rng.integers(200)))
    for _ in range(int(rng.integers(1, 4))):
        at, form = FIELDS[int(rng.integers(len(FIELDS)))]
        small = bool(rng.integers(2))
        value = int(rng.integers(20)) if small else int(rng.integers(2**64, dtype=np.uint64)) >> int(rng.integers(64))
        if way < 4:
            struct.pack_into("<" + form, data, at, value % 2 ** (8 * SIZES[form]))
        else:
            data[int(rng.integers(len(data)))] = value % 256
    if way in (3, 6):
        del data[int(rng.integers(len(data))) :]
    return bytes(data) + (rng.bytes(int(rng.integers(40))) if way in (2, 6) else b"")


def ending(data: bytes) -> str:
    """Return how reading ends: "malformed", "end of stream" or "answer"."""
    at = 0

    def receive(size: int) -> bytearray:
        nonlocal at
        assert 0 <= size <= max(MOST, wire.NOTES), f"{size} bytes asked for"
        if at + size > len(data):
            raise EOFError
        at += size
        return bytearray(data[at - size : at])

    try:
        answer = wire.read(receive, NUMBER, MOST, NAMES)
    except wire.MalformedError:
        return "malformed"
    except EOFError:
        return "end of stream"
    for code, raw in answer.outputs.items():
        assert code < len(NAMES)
        assert raw is None or len(raw.data) == prod(raw.shape) * wire.SIZES[raw.dtype] <= MOST
    return "answer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10**6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rng, message, started = np.random.default_rng(given.seed), right(), time.perf_counter()
    ends: Counter[str] = Counter()
    slowest = 0.0
    for _ in range(given.messages):
        data = malformed(rng, message)
        begun = time.thread_time()
        ends[ending(data)] += 1
        slowest = max(slowest, time.thread_time() - begun)
    found = {
        "messages": given.messages,
        "seed": given.seed,
        "ends": dict(sorted(ends.items())),
        "slowest message (s of processor time)": round(slowest, 6),
        "seconds": round(time.perf_counter() - started, 1),
        "environment": {"verify-norm": __version__, "numpy": np.__version__, "date": str(datetime.now(UTC).date())},
    }
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
