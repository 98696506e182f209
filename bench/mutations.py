"""What can be wrong with a GGUF file: of the bytes, keys, tensor table, data, tokenizer's tables.

Each mutation takes a file apart (``Parts``) and a random generator, and returns the bytes of a
damaged one. The same seed gives the same bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from gguf_parts import ARRAY, SIZES, STRING, Entry, Pair, Parts, array, items, text

Mutation = Callable[[Parts, random.Random], bytearray]

EXTREMES = [0, 1, 2, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 33]
EXTREMES += [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 32]
REALS = [0.0, -0.0, 1e-45, -1.0, 1e38, -1e38, float("inf"), float("-inf"), float("nan")]
HALVES = [0x7E00, 0xFE00, 0x7C00, 0xFC00, 0x7BFF, 0xFBFF, 0x0001, 0x8001]
"""fp16: not a number, infinite, largest, smallest."""
TYPES = [*range(42), 1000, (1 << 31), (1 << 32) - 1]
TEXTS = [b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"x" * 300, "\U0001f600".encode(), b"\n\x1b[0m"]
TEMPLATES = [
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{{ 'x' * 1000000000 }}",
    "{{ ''.__class__.__mro__ }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% if %}",
    "{{ raise_exception('no') }}",
    "{{ messages[7].content }}",
    "(" * 500,
    "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}",
]


def _sound(parts: Parts) -> tuple[bytearray, int]:
    """The bytes, and how many of them are the header's."""
    return parts.build(), len(parts.header())


def flip_header(parts: Parts, rng: random.Random) -> bytearray:
    """Bits of the header."""
    raw, end = _sound(parts)
    for _ in range(rng.choice([1, 1, 2, 8])):
        raw[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return raw


def extreme_header(parts: Parts, rng: random.Random) -> bytearray:
    """A number of 4 or 8 bytes somewhere in the header."""
    raw, end = _sound(parts)
    size = rng.choice([4, 8])
    at = rng.randrange(end - size)
    raw[at : at + size] = struct.pack("<Q", rng.choice(EXTREMES))[:size]
    return raw


def cut(parts: Parts, rng: random.Random) -> bytearray:
    """The end of the file."""
    raw, end = _sound(parts)
    return raw[: rng.randrange(end if rng.random() < 0.7 else len(raw))]


def delete(parts: Parts, rng: random.Random) -> bytearray:
    """A run of bytes."""
    raw, end = _sound(parts)
    at = rng.randrange(end)
    del raw[at : at + rng.choice([1, 4, 8, 32, 500])]
    return raw


def insert(parts: Parts, rng: random.Random) -> bytearray:
    """A run of bytes, once more or random."""
    raw, end = _sound(parts)
    at, size = rng.randrange(end), rng.choice([1, 4, 8, 32, 500])
    raw[at:at] = raw[at : at + size] if rng.random() < 0.5 else rng.randbytes(size)
    return raw


def swap(parts: Parts, rng: random.Random) -> bytearray:
    """Two runs of bytes change places."""
    raw, end = _sound(parts)
    size = rng.choice([1, 4, 8, 64])
    a, b = sorted(rng.sample(range(0, end - size, size), 2))
    raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]
    return raw


def counts(parts: Parts, rng: random.Random) -> bytearray:
    """The numbers of tensors and keys, and the version."""
    true = (len(parts.entries), len(parts.pairs))
    near = [true[0] - 1, true[0] + 1, true[1] - 1, true[1] + 1]
    parts.counts = (
        rng.choice([true[0], *near, *EXTREMES]),
        rng.choice([true[1], *near, *EXTREMES]),
    )
    parts.version = rng.choice([3, 3, 3, 2, 1, 0, 4, 3 << 24, (1 << 32) - 1])
    return parts.build()


def number_of_key(parts: Parts, rng: random.Random) -> bytearray:
    """Another number under a key that has one."""
    pair = rng.choice([pair for pair in parts.pairs if pair.kind in SIZES])
    if pair.kind in (6, 12):
        pair.value = struct.pack("<f" if pair.kind == 6 else "<d", rng.choice(REALS))
    else:
        old = int.from_bytes(pair.value, "little")
        near = [old - 1, old + 1, old * 2, old // 2, old * 32]
        new = rng.choice([*EXTREMES, *near]) & ((1 << 8 * len(pair.value)) - 1)
        pair.value = new.to_bytes(len(pair.value), "little")
    return parts.build()


def kind_of_key(parts: Parts, rng: random.Random) -> bytearray:
    """Another type for a value: read wrongly, or a sound value of that type."""
    pair = rng.choice(parts.pairs)
    pair.kind = rng.choice([*SIZES, STRING, ARRAY, 13, 255])
    if rng.random() < 0.7:
        pair.value = {STRING: text(b"text"), ARRAY: array(rng.choice([*SIZES]), [])}.get(
            pair.kind, rng.randbytes(SIZES.get(pair.kind, 4))
        )
    return parts.build()


def nested_array(parts: Parts, rng: random.Random) -> bytearray:
    """Arrays in arrays, deep, or an array that says it holds itself."""
    pair = rng.choice(parts.pairs)
    pair.kind = ARRAY
    depth = rng.choice([1, 2, 50, 5000, 100_000])
    count = rng.choice([1, 1, 1 << 20, (1 << 64) - 1])
    pair.value = struct.pack("<IQ", ARRAY, count) * depth + array(4, [bytes(4)])
    return parts.build()


def length_of_array(parts: Parts, rng: random.Random) -> bytearray:
    """An array's count, or a string's length."""
    pair = rng.choice([pair for pair in parts.pairs if pair.kind in (STRING, ARRAY)])
    at = 4 if pair.kind == ARRAY else 0
    true = int.from_bytes(pair.value[at : at + 8], "little")
    new = rng.choice([true - 1, true + 1, true // 2, true * 2, *EXTREMES]) & ((1 << 64) - 1)
    pair.value = pair.value[:at] + struct.pack("<Q", new) + pair.value[at + 8 :]
    return parts.build()


def keys(parts: Parts, rng: random.Random) -> bytearray:
    """A key is gone, there twice, renamed, or has another's value."""
    at = rng.randrange(len(parts.pairs))
    other = rng.choice(parts.pairs)
    what = rng.randrange(5)
    if what == 0:
        del parts.pairs[at]
    elif what == 1:
        parts.pairs.insert(rng.randrange(len(parts.pairs)), parts.pairs[at])
    elif what == 2:
        parts.pairs[at] = Pair(rng.choice(TEXTS), parts.pairs[at].kind, parts.pairs[at].value)
    elif what == 3:
        parts.pairs[at] = Pair(parts.pairs[at].key, other.kind, other.value)
    else:
        parts.pairs.append(Pair(b"general.alignment", 4, rng.randbytes(4)))
    return parts.build()


def text_of_key(parts: Parts, rng: random.Random) -> bytearray:
    """Another text under a key that has one: names, types of tokenizers, templates."""
    pair = rng.choice([pair for pair in parts.pairs if pair.kind == STRING])
    names = [b"llama", b"qwen2", b"qwen3", b"gemma3", b"gpt2", b"none", b"yarn", b"linear"]
    pair.value = text(rng.choice([*TEXTS, *names]))
    return parts.build()


def dims(parts: Parts, rng: random.Random) -> bytearray:
    """A tensor's shape: absurd, empty, transposed, of too many dimensions."""
    entry = rng.choice(parts.entries)
    what = rng.randrange(5)
    at = rng.randrange(len(entry.dims))
    if what == 0:
        entry.dims[at] = rng.choice(EXTREMES)
    elif what == 1:
        entry.dims[at] += rng.choice([-32, -16, -1, 1, 16, 32, 256])
    elif what == 2:
        entry.dims.reverse()
    elif what == 3:
        entry.dims = [rng.choice(EXTREMES) for _ in range(rng.choice([0, 1, 3, 4, 5, 1000]))]
    else:
        entry.dims.append(1)
    return parts.build()


def type_of_tensor(parts: Parts, rng: random.Random) -> bytearray:
    """A tensor's type."""
    rng.choice(parts.entries).kind = rng.choice(TYPES)
    return parts.build()


def offset(parts: Parts, rng: random.Random) -> bytearray:
    """A tensor's offset: negative, overflowing, not aligned, another's."""
    entry, other = rng.choice(parts.entries), rng.choice(parts.entries)
    near = [entry.offset + step for step in (-32, -1, 1, 8, 32, 4096)]
    entry.offset = rng.choice(
        [other.offset, len(parts.data), len(parts.data) - 32, *near, *EXTREMES]
    )
    return parts.build()


def tensors(parts: Parts, rng: random.Random) -> bytearray:
    """A tensor is gone, there twice, renamed; two have changed places."""
    a, b = rng.sample(range(len(parts.entries)), 2)
    one, two = parts.entries[a], parts.entries[b]
    what = rng.randrange(5)
    if what == 0:
        del parts.entries[a]
    elif what == 1:
        parts.entries.append(Entry(one.name, one.dims, one.kind, two.offset))
    elif what == 2:
        one.name = rng.choice([*TEXTS, b"blk.99.attn_q.weight", two.name])
    elif what == 3:
        one.name, two.name = two.name, one.name
    else:
        parts.entries.append(Entry(b"extra.weight", [32], 0, one.offset))
    return parts.build()


def scales(parts: Parts, rng: random.Random) -> bytearray:
    """Not a number, infinite, or the largest, where a tensor's scales or values are."""
    entry = rng.choice(parts.entries)
    end = min(entry.offset + 20_000, len(parts.data) - 2)
    for _ in range(rng.choice([1, 50, 2000])):
        at = rng.randrange(entry.offset, end) & ~1
        parts.data[at : at + 2] = struct.pack("<H", rng.choice(HALVES))
    return parts.build()


def noise(parts: Parts, rng: random.Random) -> bytearray:
    """Random bytes for the data, from somewhere on."""
    at = rng.randrange(len(parts.data))
    size = min(rng.choice([100, 10_000, 1 << 30]), len(parts.data) - at)
    parts.data[at : at + size] = rng.randbytes(size)
    return parts.build()


def token_table(parts: Parts, rng: random.Random) -> bytearray:
    """Tokens, merges, scores, kinds: doubled, emptied, mixed up, cut short, not UTF-8."""
    name = rng.choice(["tokens", "merges", "scores", "token_type"])
    pair = parts.find(f"tokenizer.ggml.{name}") or parts.find("tokenizer.ggml.tokens")
    assert pair is not None
    kind = int.from_bytes(pair.value[:4], "little")
    table = items(pair.value)
    what = rng.randrange(7)
    if what == 0:
        rng.shuffle(table)
    elif what == 1:
        table[rng.randrange(len(table))] = rng.choice(table)
    elif what == 2:
        del table[rng.randrange(len(table)) :]
    elif what == 3:
        table += table
    elif what == 4:
        table = [table[0]] * len(table)
    else:
        for _ in range(rng.choice([1, 5, 100])):
            table[rng.randrange(len(table))] = _item(kind, rng)
    pair.value = array(kind, table)
    return parts.build()


def _item(kind: int, rng: random.Random) -> bytes:
    if kind == STRING:
        odd = [b" ", b"a", b"a b c", b"<0x41>", b"<0xZZ>", "\u2581".encode(), b" \x00", b"\xc4"]
        return rng.choice([*TEXTS, *odd])
    if kind == 6:
        return struct.pack("<f", rng.choice(REALS))
    return struct.pack("<Q", rng.choice(EXTREMES))[: SIZES[kind]]


def special_tokens(parts: Parts, rng: random.Random) -> bytearray:
    """Ids of special tokens that do not exist, and flags that are none."""
    names = [
        b"bos_token_id",
        b"eos_token_id",
        b"unknown_token_id",
        b"add_bos_token",
        b"eot_token_id",
    ]
    key = b"tokenizer.ggml." + rng.choice([*names, b"add_space_prefix", b"padding_token_id"])
    parts.pairs = [pair for pair in parts.pairs if pair.key != key]
    kind = rng.choice([4, 4, 4, 5, 7, 10, 11])
    value = struct.pack("<Q", rng.choice(EXTREMES))[: SIZES[kind]]
    parts.pairs.append(Pair(key, kind, value))
    return parts.build()


def chat_template(parts: Parts, rng: random.Random) -> bytearray:
    """A template without end, without bounds, without sense."""
    key = b"tokenizer.chat_template"
    parts.pairs = [pair for pair in parts.pairs if pair.key != key]
    parts.pairs.append(Pair(key, STRING, text(rng.choice(TEMPLATES).encode())))
    return parts.build()


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_header, extreme_header, cut, delete, insert, swap, counts),
    *(number_of_key, number_of_key, kind_of_key, nested_array, length_of_array, keys, text_of_key),
    *(dims, type_of_tensor, offset, tensors, scales, noise),
    *(token_table, token_table, special_tokens, chat_template),
)
