"""What the scheduler plans: the work of one step, within one budget."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kvreuse.engine.request import Request
from kvreuse.kv.hit import Hit
from kvreuse.ops.batch import Copy

ENOUGH_ROWS = 128
"""Rows with which a step is busy computing rather than reading weights."""


class Work(NamedTuple):
    """``rows`` tokens of ``request`` to compute, from its first cursor on."""

    request: Request
    rows: int


class Admission(NamedTuple):
    """Open ``request`` by ``hit``, what the cache holds of it, and compute ``rows`` more tokens."""

    request: Request
    rows: int
    hit: Hit


class StepPlan(NamedTuple):
    """One step. As planned ``works`` are of running requests; as begun, of all it computes."""

    works: tuple[Work, ...]
    admitted: tuple[Admission, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The group ids of those it serves, each once."""
        requests = [work.request for work in self.works]
        requests += [admission.request for admission in self.admitted]
        return tuple(dict.fromkeys(request.group_id for request in requests))

    def alone(self, names: Collection[str]) -> StepPlan:
        """The same for one group only: the first of ``names`` in it, or else the first of all.

        For a plan that has not begun.
        """
        chosen = next((name for name in self.names if name in names), self.names[0])
        return StepPlan(
            tuple(work for work in self.works if work.request.group_id == chosen),
            tuple(one for one in self.admitted if one.request.group_id == chosen),
        )


class Budget:
    """Rows of prompts that a step may still have.

    A prompt's first token comes at the end of its step, and beyond ``ENOUGH_ROWS`` a row costs the
    same in a small step as in a large one. So once a prompt is complete, and that many rows are in
    the step, the next prompts wait for the next step: the first ones get their tokens sooner, the
    last ones no later.
    """

    def __init__(self, rows: int) -> None:
        self._rows = self.left = rows

    def spend(self, wanted: int) -> int:
        """Rows for a prompt that needs ``wanted`` to be complete."""
        rows = min(self.left, wanted)
        self.left -= rows
        if rows == wanted and self._rows - self.left >= ENOUGH_ROWS:
            self.left = 0
        return rows
