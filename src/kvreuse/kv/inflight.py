"""InFlight: the full pages that running sequences are computing."""

from __future__ import annotations

from collections import Counter

from kvreuse.kv.keys import Tokens, token_bytes
from kvreuse.kv.sequence import SeqKV


class InFlight:
    """What will be found soon: the next page of each sequence whose tokens are known."""

    def __init__(self) -> None:
        self._computing: Counter[tuple[int, bytes]] = Counter()

    def __contains__(self, page: tuple[int, bytes]) -> bool:
        """Whether somebody computes the page of these tokens after this node."""
        return page in self._computing

    def announce(self, seq: SeqKV, ids: Tokens) -> None:
        """Say which full page ``seq`` is computing, as far as ``ids`` tell."""
        start = seq.written // seq.page_size * seq.page_size
        known = seq.node is not None and start + seq.page_size <= len(ids)
        tokens = token_bytes(ids[start : start + seq.page_size]) if known else b""
        if seq.next_page is not None:
            self._computing[seq.next_page] -= 1
            if not self._computing[seq.next_page]:
                del self._computing[seq.next_page]
            seq.next_page = None
        if seq.node is not None and tokens:
            seq.next_page = seq.node, tokens
            self._computing[seq.next_page] += 1
