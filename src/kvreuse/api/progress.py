"""Bars on standard error while something takes its time."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from kvreuse.api.outputs import Delta

PATIENCE = 1.0
"""Seconds after which a wait is worth a bar."""


@contextmanager
def shown_after(bar: Progress, patience: float = PATIENCE) -> Iterator[None]:
    """Show ``bar`` if the block takes longer than ``patience`` seconds, until it ends."""
    finished = threading.Event()

    def show() -> None:
        if not finished.wait(patience):
            with bar:
                finished.wait()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@dataclasses.dataclass(slots=True)
class Served:
    """What has become of a list of prompts so far."""

    prompts: int = 0
    """Those that are finished."""
    prompt_tokens: int = 0
    """Their tokens."""
    cached_tokens: int = 0
    """Those of them that were found in the cache."""
    generated_tokens: int = 0
    """Tokens of all answers."""
    start: float = dataclasses.field(default_factory=time.perf_counter)

    def take(self, delta: Delta) -> None:
        """Count one delta."""
        self.generated_tokens += len(delta.token_ids)
        if delta.output is not None:
            self.prompts += 1
            self.prompt_tokens += len(delta.output.prompt_token_ids)
            self.cached_tokens += delta.output.num_cached_tokens

    def speed(self) -> str:
        """Tokens a second, in and out, and the share of the former that was cached."""
        seconds = max(time.perf_counter() - self.start, 1e-9)
        cached = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return (
            f"{self.prompt_tokens / seconds:,.0f} in, "
            f"{self.generated_tokens / seconds:,.0f} out tok/s, {cached:.0%} cached"
        )


class _SpeedColumn(ProgressColumn):
    def __init__(self, served: Served) -> None:
        self._served = served
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """What the bar says behind the number of prompts."""
        return Text(self._served.speed(), style="progress.data.speed")


@contextmanager
def prompts_bar(total: int, wanted: bool | None) -> Iterator[Callable[[Delta], None]]:
    """A bar over ``total`` prompts; yields what takes their deltas.

    ``wanted`` None: only on a terminal, over several prompts, once they take more than a second.
    True: at once, and where there is no terminal the line in which it ended. False: none.
    """
    served = Served()
    console = Console(stderr=True, highlight=False, emoji=False)
    if wanted is False or (wanted is None and not (console.is_terminal and total > 1)):
        yield served.take
        return
    columns = (
        TextColumn("Prompts"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        _SpeedColumn(served),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=wanted is None)
    task = bar.add_task("", total=total)

    def take(delta: Delta) -> None:
        served.take(delta)
        if delta.finished:
            bar.update(task, completed=served.prompts)

    with bar if wanted else shown_after(bar):
        yield take
