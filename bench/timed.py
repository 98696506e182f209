"""Kernels that keep account of their own time, for benchmarks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kvreuse.ops.native import Kernels, Projection


class TimedKernels:
    """Stands in for ``Kernels`` in a decoder; ``seconds`` by operation, a linear by its shape."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.isa, self.threads = kernels.isa, kernels.threads
        self.seconds: dict[str, float] = defaultdict(float)

    def embed(self, *arguments: Any) -> None:
        """As ``Kernels.embed``."""
        self._time("embed", self._kernels.embed, arguments)

    def attend(self, *arguments: Any) -> None:
        """As ``Kernels.attend``."""
        self._time("attention", self._kernels.attend, arguments)

    def linear(self, *arguments: Any) -> None:
        """As ``Kernels.linear``."""
        projection: Projection = arguments[1]
        name = f"linear {projection.inputs} -> {projection.outputs}"
        self._time(name, self._kernels.linear, arguments)

    def _time(self, name: str, kernel: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        begin = time.perf_counter()
        kernel(*arguments)
        self.seconds[name] += time.perf_counter() - begin

    def take(self) -> dict[str, float]:
        """The seconds so far, and start again."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds
