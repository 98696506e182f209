"""Which layers of a model see a window only, and how wide it is.

``layer_types`` says it outright. Where it is missing, every family has a rule of its own; sources
are the configuration classes of the families in the ``transformers`` package.
"""

from __future__ import annotations

from collections.abc import Callable

from kvreuse.plan.fields import LONGEST, MOST_LAYERS, Fields

Windows = list[int | None]
Rule = Callable[[Fields, int], Windows]

WINDOW_TYPES = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""The entries of ``layer_types`` that limit a layer, and the field that says to how many tokens."""
FULL_TYPES = frozenset({"full_attention", "attention"})


def no_windows(fields: Fields, layers: int) -> Windows:
    """Every layer sees everything, whatever ``sliding_window`` says: the family has none."""
    return [None] * layers


def on_all(fields: Fields, layers: int) -> Windows:
    """Every layer has the window, where there is one (Mistral, Phi-3, Starcoder 2)."""
    return _of_types(fields, layers) or [_window(fields)] * layers


def above(fields: Fields, layers: int) -> Windows:
    """Layers from ``max_window_layers`` on, and only with ``use_sliding_window`` (Qwen 2 and 3)."""
    if not fields.flag("use_sliding_window", False):
        return [None] * layers
    if (listed := _of_types(fields, layers)) is not None:
        return listed
    first = fields.count("max_window_layers", default=28, least=0, most=MOST_LAYERS)
    return [_window(fields) if i >= first else None for i in range(layers)]


def all_but_every(default: int) -> Rule:
    """Every n-th layer sees everything, the others have the window; n is ``default`` if unsaid."""

    def rule(fields: Fields, layers: int) -> Windows:
        if not fields.flag("use_sliding_window", True):
            return [None] * layers
        if (listed := _of_types(fields, layers)) is not None:
            return listed
        full = _pattern(fields, layers, default)
        return [None if everything else _window(fields) for everything in full]

    return rule


def chunks(fields: Fields, layers: int) -> Windows:
    """Layers with a rotary embedding attend within chunks, the others to everything (Llama 4)."""
    if (listed := _of_types(fields, layers)) is not None:
        return listed
    chunk = fields.optional("attention_chunk_size", most=LONGEST)
    rotary = (
        fields.counts("no_rope_layers", layers, least=0)
        if fields.values.get("no_rope_layers")
        else None
    )  # an empty list is a missing one
    every = fields.count("no_rope_layer_interval", default=4)
    return [chunk if (rotary[i] if rotary else (i + 1) % every) else None for i in range(layers)]


def _of_types(fields: Fields, layers: int) -> Windows | None:
    """What ``layer_types`` says, or None where it is missing."""
    types = fields.texts("layer_types", layers)
    return None if types is None else [window_of_type(fields, kind) for kind in types]


def window_of_type(fields: Fields, kind: str) -> int | None:
    """The window of a layer of this type. ModelFileError for a type that is not attention."""
    if kind in FULL_TYPES:
        return None
    if kind not in WINDOW_TYPES:
        known = ", ".join([*sorted(FULL_TYPES), *WINDOW_TYPES])
        fields.fail(f"'layer_types' has a {kind[:40]!r}, which is unknown here (known: {known})")
    name = WINDOW_TYPES[kind]
    if kind == "chunked_attention" and name not in fields:
        return None
    return fields.count(name, most=LONGEST)


def _window(fields: Fields) -> int | None:
    return fields.optional("sliding_window", most=LONGEST)


def _pattern(fields: Fields, layers: int, default: int) -> list[bool]:
    """Whether each layer sees everything, by a number or by letters as in ``LLLG`` (G: global)."""
    name = next(
        (n for n in ("sliding_window_pattern", "_sliding_window_pattern") if n in fields), None
    )
    letters = fields.values[name] if name else None
    if isinstance(letters, str):
        if not letters or set(letters) - {"L", "G"}:
            fields.fail(f"'{name}' must be a number or letters L and G, it is {letters[:40]!r}")
        return [letters[i % len(letters)] == "G" for i in range(layers)]
    every = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=default)
    return [(i + 1) % every == 0 for i in range(layers)]
