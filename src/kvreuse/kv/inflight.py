"""InFlight: the full pages that running sequences are computing."""

from __future__ import annotations

from collections import Counter

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.sequence import SeqKV


class InFlight:
    """What will be found soon: the next page of each sequence whose tokens are known."""

    def __init__(self) -> None:
        self._computing: Counter[tuple[int, bytes]] = Counter()

    def __contains__(self, page: tuple[int, bytes]) -> bool:
        """Whether somebody computes the page of these tokens after this node."""
        return page in self._computing

    def announce(self, seq: SeqKV, tokens: bytes, start: int = 0) -> None:
        """Say which full page ``seq`` is computing, as far as ``tokens`` tell.

        ``tokens`` are those known of the sequence from position ``start`` on, the beginning of a
        page that is not yet full or of one before it.
        """
        size = seq.page_size * TOKEN_BYTES
        at = seq.written // seq.page_size * size - start * TOKEN_BYTES
        page = tokens[at : at + size]
        if seq.next_page is not None:
            self._computing[seq.next_page] -= 1
            if not self._computing[seq.next_page]:
                del self._computing[seq.next_page]
            seq.next_page = None
        if seq.node is not None and len(page) == size:
            seq.next_page = seq.node, page
            self._computing[seq.next_page] += 1
