"""Files damaged or falsified: bytes changed, cut, doubled, moved; headers with absurd numbers."""

import json
from typing import Any

from tests.fuzz.values import Maker

KINDS = ("flip", "flip", "bytes", "cut", "empty", "more", "double", "drop", "zero", "splice",
         "number", "number", "text")
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
WORDS = (b"-1", b"99999999999", b"1e400", b"nan", b"inf", b"0", b"", b"1_0", b"\xff", b"\0",
         b"-9223372036854775808", b"0.5", b"x" * 300)
WRONG_JSON: tuple[Any, ...] = (
    None, -1, 1e400, "x", [], {}, [[]], {"tensor": "none"}, True, 10**30, [1, 2, 3], 0, 2**31, "",
    {"kind": "potts"}, -1.5, [None], {"tensor": 3}, "\ud800",
)


def damaged(maker: Maker, content: bytes, other: bytes = b"") -> bytes:
    """The content as it is in a gentle case, else with one to three things wrong."""
    if not maker.hostile:
        return content
    for _ in range(maker.pick([1, 1, 1, 2, 3])):
        content = damage(maker, content, other)
    return content


def damage(maker: Maker, content: bytes, other: bytes) -> bytes:
    """One thing wrong; what describes a file is at its beginning, so that is hit more often."""
    data = bytearray(content)
    if not data:
        return bytes(data)
    reach = maker.pick([len(data), min(len(data), 64), min(len(data), 400)]) - 1
    first, second = sorted((maker.count(0, reach), maker.count(0, len(data) - 1)))
    kind = maker.pick(KINDS)
    if kind == "flip":
        data[first] ^= 1 << maker.count(0, 7)
    elif kind == "bytes":
        for _ in range(maker.count(1, 4)):
            data[maker.count(0, reach)] = maker.count(0, 255)
    elif kind == "cut":
        del data[first:]
    elif kind == "empty":
        data.clear()
    elif kind == "more":
        data += maker.rng.bytes(maker.count(1, 40))
    elif kind == "double":
        data[first:first] = data[first:second]
    elif kind == "drop":
        del data[first:second]
    elif kind == "zero":
        data[first:second] = bytes(second - first)
    elif kind == "splice":
        data[first:] = other[maker.count(0, len(other)):]
    elif kind == "number":
        size = maker.pick([1, 2, 4, 8])
        number = maker.pick(NUMBERS) & (256**size - 1)
        data[first:first + size] = number.to_bytes(size, maker.pick(["little", "big"]))
    else:
        return damage_text(maker, bytes(data))
    return bytes(data)


def damage_text(maker: Maker, content: bytes) -> bytes:
    """A word of a text replaced, or of a header that is text."""
    words = content.split(b" ")
    words[maker.count(0, len(words) - 1)] = maker.pick(WORDS)
    return b" ".join(words)


def falsify(maker: Maker, document: Any) -> None:
    """Put something wrong somewhere into a JSON document."""
    place = document
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = maker.pick(keys)
        inner = place[key]
        if maker.chance(0.4) or not isinstance(inner, dict | list) or not inner:
            if isinstance(place, dict) and maker.chance(0.15):
                del place[key]
            else:
                place[key] = maker.pick(WRONG_JSON)
            return
        place = inner


def falsified_text(maker: Maker, text: str) -> str:
    document = json.loads(text)
    falsify(maker, document)
    return json.dumps(document)
