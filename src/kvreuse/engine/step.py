"""StepPlan and Budget: the work of one step, within one budget of rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kvreuse.engine.request import Request
from kvreuse.kv.hit import Hit
from kvreuse.ops.batch import Copy

ENOUGH_ROWS = 128
"""Rows from which a step is bound by compute, not by reading the weights."""


class Work(NamedTuple):
    """Compute the next ``rows`` tokens of ``request``."""

    request: Request
    rows: int


class Admission(NamedTuple):
    """Open ``request`` with its cache ``hit``, and compute the next ``rows`` tokens."""

    request: Request
    rows: int
    hit: Hit


class StepPlan(NamedTuple):
    """One step. When planned, ``works`` has the running requests; when begun, the admitted too."""

    works: tuple[Work, ...]
    admitted: tuple[Admission, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The group ids of the requests in the step, each once."""
        requests = [work.request for work in self.works]
        requests += [admission.request for admission in self.admitted]
        return tuple(dict.fromkeys(request.group_id for request in requests))

    def alone(self, names: Collection[str]) -> StepPlan:
        """The plan for one group only: the first that is in ``names``, or else the first of all.

        Only for a plan that has not begun.
        """
        chosen = next((name for name in self.names if name in names), self.names[0])
        return StepPlan(
            tuple(work for work in self.works if work.request.group_id == chosen),
            tuple(one for one in self.admitted if one.request.group_id == chosen),
        )


class Budget:
    """Rows of prompts (chunked prefill) that a step may still take.

    A prompt's first token comes at the end of its step, and beyond ``ENOUGH_ROWS`` a row costs the
    same in a small step as in a large one. So once a prompt is complete and the step has that many
    rows, further prompts wait for the next step: the first ones get their tokens sooner, the last
    ones no later.
    """

    def __init__(self, rows: int) -> None:
        self._rows = self.left = rows

    def spend(self, wanted: int) -> int:
        """Take rows for a prompt that needs ``wanted`` more; returns how many it gets."""
        rows = min(self.left, wanted)
        self.left -= rows
        if rows == wanted and self._rows - self.left >= ENOUGH_ROWS:
            self.left = 0
        return rows
