"""InFlight: the full pages that running sequences are computing."""

from __future__ import annotations

from collections import Counter

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.sequence import SeqKV


class InFlight:
    """The page that each running sequence fills next, if all its tokens are known."""

    def __init__(self) -> None:
        self._computing: Counter[tuple[int, bytes]] = Counter()

    def __contains__(self, page: tuple[int, bytes]) -> bool:
        """Whether a sequence computes the page ``(node, tokens)``: these tokens below this node."""
        return page in self._computing

    def announce(self, seq: SeqKV, tokens: bytes, start: int = 0) -> None:
        """Record which full page ``seq`` is computing; none if ``tokens`` do not fill it.

        ``tokens`` are the known ones from position ``start`` on, the start of the first page that
        is not full, or of an earlier page.
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
