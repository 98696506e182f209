"""Page keys: 32 bytes that identify the contents of a page, the same in every process.

A key is a link of a SHA-256 chain: ``key = H(parent key + token ids)``, and the root of a chain
is ``H(namespace + salt)``. Equal keys mean the same namespace, the same salt and the same tokens
from the first to the last of the page. Keys identify pages outside the process; inside, pages are
found by comparing tokens, so no answer depends on a hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Tokens = Sequence[int] | npt.NDArray[np.int32]
"""Token ids of a sequence, from its first token on; slicing an array copies nothing."""

Hash = Callable[[bytes], bytes]
"""A hash function: from any bytes to a digest."""

KEY_BYTES = 32
"""Bytes of a key: a SHA-256."""

TOKEN_BYTES = 4
"""Bytes of a token id where ids are compared or hashed: a little-endian int32."""

_LITTLE_INT32 = np.dtype("<i4")


def sha256(data: bytes) -> bytes:
    """The 32 bytes of SHA-256 (FIPS 180-4)."""
    return hashlib.sha256(data).digest()


def namespace(**fields: bytes | str | int) -> bytes:
    """SHA-256 of everything, except tokens and salt, that the bits of a page depend on.

    Each field is hashed with its name and length, so that different fields give different bytes.
    """
    digest = hashlib.sha256(b"kvreuse namespace 1")
    for name, value in sorted(fields.items()):
        data = value if isinstance(value, bytes) else str(value).encode()
        digest.update(f";{name}:{len(data)}=".encode() + data)
    return digest.digest()


def root_key(space: bytes, salt: str | None, digest: Hash = sha256) -> bytes:
    """The parent key of a sequence's first page. None differs from every salt, the empty one too.

    Hashes 33 or 65 bytes, while :func:`page_key` hashes a multiple of four: so no salt gives the
    key of a page.
    """
    if salt is None:
        return digest(space + b"\0")
    return digest(space + b"\1" + sha256(salt.encode("utf-8", "surrogatepass")))


def page_key(parent: bytes, tokens: bytes, digest: Hash = sha256) -> bytes:
    """The key of the page that holds ``tokens`` (:func:`token_bytes`) after the page ``parent``."""
    return digest(parent + tokens)


def token_bytes(ids: Tokens) -> bytes:
    """Token ids as bytes, four each: equal ids give equal bytes, and a prefix gives a prefix."""
    return np.asarray(ids, dtype=_LITTLE_INT32).tobytes()


def token_ids(tokens: bytes) -> tuple[int, ...]:
    """The inverse of :func:`token_bytes`."""
    return tuple(np.frombuffer(tokens, dtype=_LITTLE_INT32).tolist())


def shared_tokens(one: bytes, other: bytes) -> int:
    """The length in tokens of the longest common prefix of ``one`` and ``other``."""
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    if differ == 0:
        return length // TOKEN_BYTES
    return ((differ & -differ).bit_length() - 1) // (8 * TOKEN_BYTES)
