"""Numbers as captions say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time to three digits: ``4.1 ms``, ``230 ms``, ``12.3 s``."""
    if seconds < 1:
        return f"{three(seconds * 1e3)} ms"
    return f"{three(seconds)} s"


def three(value: float) -> str:
    """A number to three digits, without an exponent: ``0.123``, ``12.3``, ``1,234``."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def factor(value: float) -> str:
    """A factor: ``1.3``, ``4.2``, ``31``."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def medians_of(runs: int) -> str:
    """How often something was measured."""
    return "one run" if runs == 1 else f"medians of {runs} runs"


def medians_of_zh(runs: int) -> str:
    """The same in Chinese."""
    return "只测一轮" if runs == 1 else f"取 {runs} 轮的中位数"


def percent(share: float) -> str:
    """A share as a percentage: ``75%``."""
    return f"{share:.0%}"
