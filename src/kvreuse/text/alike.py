"""How many characters two texts share at their starts and ends."""

from __future__ import annotations


def shared_start(one: str, other: str) -> int:
    """How many characters both start with."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def shared_end(one: str, other: str) -> int:
    """How many characters both end with."""
    return shared_start(one[::-1], other[::-1])
