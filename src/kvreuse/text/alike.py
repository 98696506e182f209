"""How far two texts are alike."""

from __future__ import annotations


def shared_start(one: str, other: str) -> int:
    """Characters that both start with."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def shared_end(one: str, other: str) -> int:
    """Characters that both end with."""
    return shared_start(one[::-1], other[::-1])
