"""Everything that a plan tells, as plain values: for a person's tables and for a program's JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.kv.layout import check_page_size
from kvreuse.ops.backend import Backend
from kvreuse.plan.buffers import StepShape
from kvreuse.plan.memory import UNBOUNDED, KVPlan, MemoryPlan
from kvreuse.plan.source import PlannedModel

DEFAULT_CONTEXT = 32_768
"""Tokens of a sequence where nothing is said, if the model can have as many."""
LENGTHS = 8
BATCHES = (1, 4, 16, 64)


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: sequences of ``context`` tokens, ``parallel`` of them, in ``memory`` bytes.

    The first ``shared_prefix`` tokens of all are the same. ConfigError for a wish that makes no
    sense; one that does not fit is answered.
    """

    memory: int
    backend: Backend
    context: int | None = None
    parallel: int = 1
    shared_prefix: int = 0
    codec: str = "bf16"
    page_size: int = 32

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        if self.memory < 1:
            raise ConfigError("--memory must be more than 0 bytes")
        for flag, value, least in (
            ("--context", self.context, 1),
            ("--parallel", self.parallel, 1),
            ("--shared-prefix", self.shared_prefix, 0),
            ("--page-size", self.page_size, 1),
        ):
            if value is not None and not least <= value <= UNBOUNDED:
                raise ConfigError(f"{flag} must be from {least} to {UNBOUNDED:,}, got {value:,}")
        check_page_size(self.page_size)
        if self.codec not in UNIFORM:
            raise ConfigError(
                f"--kv-cache-dtype {self.codec!r} is not a codec to plan "
                f"(known: {', '.join(UNIFORM)})"
            )


def plan_of(model: PlannedModel, wish: Wish, codec: str | None = None) -> MemoryPlan:
    """The memory plan of a model in the wish's codec, or in another one."""
    return MemoryPlan(
        KVPlan(model.shape, codec or wish.codec, wish.page_size),
        model.weight_bytes,
        by_reserved=model.served,
        step=StepShape(wish.backend, page_size=wish.page_size),
    )


def context_of(model: PlannedModel, wish: Wish) -> int:
    """Tokens of a sequence: what was asked, or the model's limit, or ``DEFAULT_CONTEXT``.

    ConfigError if the shared prefix is longer.
    """
    limit = model.shape.context_length or DEFAULT_CONTEXT
    context = wish.context or max(min(limit, DEFAULT_CONTEXT), min(limit, wish.shared_prefix))
    if wish.shared_prefix > context:
        raise ConfigError(
            f"--shared-prefix {wish.shared_prefix:,} is longer than a sequence of {context:,} "
            "tokens: lower it or raise --context"
        )
    return context


def report(model: PlannedModel, wish: Wish) -> dict[str, Any]:
    """The whole answer. Sizes in bytes."""
    plan, context = plan_of(model, wish), context_of(model, wish)
    kv, shape = plan.kv, model.shape
    shared, parallel = wish.shared_prefix, wish.parallel
    return {
        "model": {
            "name": model.name,
            "source": model.source,
            "architecture": shape.architecture,
            "layers": shape.num_layers,
            "context": shape.context_length,
            "served": model.served,
            "unserved_because": model.unserved or None,
            "weights_as": model.weights_as,
        },
        "codec": wish.codec,
        "context": context,
        "parallel": parallel,
        "shared_prefix": shared,
        "token": {"needed": kv.token_bytes, "reserved": kv.token_bytes},
        "lasting_token": {"needed": kv.lasting_token_bytes, "reserved": kv.token_bytes},
        "state": {"needed": kv.state_bytes, "reserved": kv.state_bytes},
        "page": {"tokens": wish.page_size, "bytes": kv.page_bytes},
        "sequence": _both(kv, context),
        "batch": _both(kv, context, parallel),
        "batch_sharing": _both(kv, context, parallel, shared),
        "weights": model.weight_bytes,
        "buffers": plan.buffers(context, parallel),
        "process": plan.process,
        "total": plan.total(context, parallel, shared),
        "memory": wish.memory,
        "fits": {
            "context": plan.largest_context(wish.memory, parallel, shared),
            "parallel": plan.largest_batch(wish.memory, context, shared),
        },
        "table": _table(plan, context, parallel),
        "codecs": [_codec(name, model, wish, context) for name in UNIFORM],
    }


def warnings(found: dict[str, Any], size: Callable[[int], str]) -> list[str]:
    """What somebody should know before they start, a line each; ``size`` words bytes."""
    lines = []
    model, context, parallel = found["model"], found["context"], found["parallel"]
    limit, basis = model["context"], "reserved" if model["served"] else "needed"
    kv, weights, total = found["batch_sharing"][basis], found["weights"], found["total"]
    who = "a sequence" if parallel == 1 else f"{parallel:,} sequences"
    if limit is not None and context > limit:
        lines.append(
            f"--context {context:,} is beyond the model's limit of {limit:,} tokens: "
            "it was not made for positions past that"
        )
    if weights is not None and kv > weights:
        lines.append(
            f"keys and values of {who} of {context:,} tokens ({size(kv)}) "
            f"outgrow the weights ({size(weights)})"
        )
    if total > found["memory"]:
        lines.append(f"all together {size(total)}, more than the {size(found['memory'])} there are")
    return lines


def _both(kv: KVPlan, tokens: int, parallel: int = 1, shared: int = 0) -> dict[str, int]:
    return {
        "needed": kv.needed(tokens, parallel, shared),
        "reserved": kv.reserved(tokens, parallel, shared),
    }


def _table(plan: MemoryPlan, context: int, parallel: int) -> list[dict[str, int]]:
    """Keys and values over lengths and batch sizes, and all memory together."""
    longest = max(plan.kv.shape.context_length or 4 * DEFAULT_CONTEXT, context)
    powers = [1 << power for power in range(9, longest.bit_length()) if 1 << power <= longest]
    lengths = sorted({*powers[-LENGTHS:], context})
    return [
        {
            "tokens": tokens,
            "sequences": sequences,
            "kv": plan.kv_bytes(tokens, sequences),
            "total": plan.total(tokens, sequences),
        }
        for tokens in lengths
        for sequences in sorted({*BATCHES, parallel})
    ]


def _codec(name: str, model: PlannedModel, wish: Wish, context: int) -> dict[str, Any]:
    """The batch in a codec, and what that saves against bf16."""
    plan, plain = plan_of(model, wish, name), plan_of(model, wish, "bf16")
    shared, parallel = wish.shared_prefix, wish.parallel
    batch = plan.kv_bytes(context, parallel, shared)
    return {
        "codec": name,
        "token": plan.kv.token_bytes,
        "batch": batch,
        "saved": plain.kv_bytes(context, parallel, shared) - batch,
        "fits_context": plan.largest_context(wish.memory, parallel, shared),
    }
