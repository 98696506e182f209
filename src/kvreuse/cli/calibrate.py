"""``kvreuse calibrate``: learn how a model's keys and values are best stored in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from kvreuse.cli import terminal
from kvreuse.cli.flags import AsJson, Model, with_flags
from kvreuse.cli.loading import MACHINE, TextFile, subject_of, text_of
from kvreuse.cli.terminal import progress, show_table
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import WIDTHS
from kvreuse.sizes import format_size

if TYPE_CHECKING:
    from kvreuse.study.quality.calibrate import Calibrated

BOUND_FLAG = "--max-ppl-increase"


@with_flags(MACHINE)
def calibrate(
    model: Model,
    *,
    text_file: TextFile = None,
    max_ppl_increase: Annotated[
        str,
        typer.Option(
            BOUND_FLAG, metavar="SHARE", help="How much perplexity auto may cost, against bf16."
        ),
    ] = "0.5%",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to write; left out: the cache folder, where it is found."
        ),
    ] = None,
    heat_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to draw the errors (SVG); left out: next to the output."
        ),
    ] = None,
    as_json: AsJson = False,
    machine: dict[str, Any],
) -> None:
    """Learn how a model's keys and values are best stored in 8 and 4 bits, and what that costs.

    The result is one small file, found and used whenever this model runs with --kv-cache-dtype.
    Takes minutes: perplexity is measured with every codec.

    \b
      kvreuse calibrate smollm2-135m
      kvreuse calibrate smollm2-135m --text book.txt --max-ppl-increase 1%
      kvreuse run smollm2-135m "Why is the sky blue?" --kv-cache-dtype auto
    """
    bound = _parse_share(max_ppl_increase)
    content = text_of(text_file)
    from kvreuse.model.calibrated import calibration_path  # noqa: PLC0415
    from kvreuse.study.quality.calibrate import calibrate as measure  # noqa: PLC0415
    from kvreuse.study.quality.heatmap import heat_map as drawn  # noqa: PLC0415

    subject = subject_of(model, machine)
    target = output or calibration_path(subject.digest)
    picture = heat_map or target.with_suffix(".svg")
    found = measure(subject, content, bound, progress)
    found.calibration.save(target)
    name = Path(model).name.removesuffix(".gguf")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(drawn(found.calibration, name), encoding="utf-8")
    if as_json:
        terminal.write_json(_as_json(found, model, bound, target, picture))
    else:
        _show(found, bound, target, picture)


def _as_json(
    found: Calibrated, model: str, bound: float, target: Path, picture: Path
) -> dict[str, Any]:
    """The figures; increases are relative, their errors standard errors."""
    return {
        "model": model,
        "text": found.calibration.text,
        "tokens": found.tokens,
        "bf16_ppl": found.reference_ppl,
        "max_ppl_increase": bound,
        "within_bound": found.increases["auto"].at_most <= bound,
        "results": [
            {
                "kv_cache_dtype": name,
                "ppl_increase": increase.value,
                "standard_error": increase.error,
                "bytes_per_token": found.bytes_per_token[name],
                "refused": found.calibration.refusal(name) is not None,
            }
            for name, increase in found.increases.items()
        ],
        "auto_planes": _plane_counts(found),
        "calibration": str(target),
        "heat_map": str(picture),
    }


def _plane_counts(found: Calibrated) -> dict[str, int]:
    """How many planes ``auto`` has in each codec."""
    widths = found.calibration.widths
    assert widths is not None
    return {name: int(np.sum(widths == i)) for i, name in enumerate(WIDTHS)}


def _show(found: Calibrated, bound: float, target: Path, picture: Path) -> None:
    whole = found.bytes_per_token["bf16"]
    rows = [("bf16", f"{found.reference_ppl:.3f}", "", format_size(whole), "")]
    for name, increase in found.increases.items():
        size = found.bytes_per_token[name]
        rows.append(
            (
                name,
                f"{found.reference_ppl * (1 + increase.value):.3f}",
                f"{increase.value:+.2%} ± {increase.error:.2%}",
                format_size(size),
                f"{size / whole:.3f}x",
            )
        )
    headings = ("KV CACHE", "PERPLEXITY", "INCREASE", "KV PER TOKEN", "OF BF16")
    terminal.say(f"on {found.calibration.text}", "dim")
    show_table(headings, rows)
    planes = ", ".join(f"{count} in {name}" for name, count in _plane_counts(found).items())
    terminal.say(f"auto: keys and values of {planes} (by layer and head)")
    if found.increases["auto"].at_most > bound:
        terminal.say(
            f"auto was not shown to stay within {bound:.2%}: give a longer --text, "
            f"or a larger {BOUND_FLAG}",
            "yellow",
        )
    for name in found.increases:
        if refusal := found.calibration.refusal(name):
            terminal.say(refusal, "yellow")
    terminal.say(f"saved {target}")
    terminal.say(f"drawn {picture}")


def _parse_share(words: str) -> float:
    """``0.5%`` or ``0.005`` as 0.005. ConfigError for what is no number above 0."""
    try:
        share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise ConfigError(f"{BOUND_FLAG} must be a share above 0, such as 0.5%, got {words!r}")
    return share
