"""What a GGUF file says of its model, as far as the oracle computes it.

Keys: the GGUF specification and the writers of the ``gguf`` package. What a file leaves out, and
the rules that no file states, are those of the models' own configurations.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader

from .rope import Rope, Scaling

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. ``windows[i]`` is how many last positions layer ``i`` sees (None: all)."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    rope: Rope
    local_rope: Rope
    """Of layers with a window."""
    windows: tuple[int | None, ...]
    embedding_scale: float
    attention_scale: float
    gelu: bool


class Fields:
    """The keys of one architecture."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture = str(self._fields["general.architecture"].contents())

    def get(self, key: str, default: T) -> T:
        """The value under ``{architecture}.{key}``, as one of the type of ``default``."""
        field = self._fields.get(f"{self.architecture}.{key}")
        return default if field is None else type(default)(field.contents())  # type: ignore[call-arg]

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        return self._fields[f"{self.architecture}.{key}"].contents()


def read_shape(reader: GGUFReader) -> Shape:
    """The shape of the model in a file. NotImplementedError for an unknown architecture."""
    fields = Fields(reader)
    if fields.architecture not in ARCHITECTURES:
        raise NotImplementedError(f"the oracle does not know {fields.architecture!r}")
    gemma = fields.architecture == "gemma3"
    hidden, heads = int(fields.need("embedding_length")), int(fields.need("attention.head_count"))
    head_dim = fields.get("attention.key_length", hidden // heads)
    layers = int(fields.need("block_count"))
    largest_gemma = gemma and layers == 62  # the one whose heads are not as wide as it scales by
    rope = _rope(reader, fields, head_dim)
    return Shape(
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        eps=float(fields.need("attention.layer_norm_rms_epsilon")),
        rope=rope,
        local_rope=_local_rope(fields, rope) if gemma else rope,
        windows=_windows(fields, layers),
        embedding_scale=hidden**0.5 if gemma else 1.0,
        attention_scale=(hidden / heads if largest_gemma else head_dim) ** -0.5,
        gelu=gemma,
    )


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Every n-th layer sees everything, for 0 none does; the others have the window, if any."""
    window = fields.get("attention.sliding_window", 0) or None
    every = 6 if fields.architecture == "gemma3" else 0
    every = fields.get("attention.sliding_window_pattern", every)
    return tuple(None if every and (i + 1) % every == 0 else window for i in range(layers))


def _rope(reader: GGUFReader, fields: Fields, head_dim: int) -> Rope:
    dims = fields.get("rope.dimension_count", head_dim)
    base = fields.get("rope.freq_base", 1e6 if fields.architecture == "gemma3" else 1e4)
    scaling = Scaling(
        regime=fields.get("rope.scaling.type", "linear"),
        factor=fields.get("rope.scaling.factor", fields.get("rope.scale_linear", 1.0)),
        context=fields.get("rope.scaling.original_context_length", 0)
        or int(fields.need("context_length")),
        beta_fast=fields.get("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.get("rope.scaling.yarn_beta_slow", 1.0),
        low_freq_factor=fields.get("rope.scaling.low_freq_factor", 1.0),
        high_freq_factor=fields.get("rope.scaling.high_freq_factor", 4.0),
        magnitude=fields.get("rope.scaling.attn_factor", 1.0),
    )
    divisors, magnitude = scaling.divisors(base, dims), scaling.stretch()
    given = {tensor.name: tensor.data for tensor in reader.tensors}.get("rope_freqs.weight")
    if given is not None:
        divisors = given.astype(np.float64)
    return Rope(base, dims, fields.architecture != "llama", tuple(divisors.tolist()), magnitude)


def _local_rope(fields: Fields, rope: Rope) -> Rope:
    """Layers with a window turn by a base of their own, and are not scaled."""
    base = fields.get("rope.freq_base_swa", 1e4)
    return Rope(base, rope.dims, rope.halves, (1.0,) * (rope.dims // 2), 1.0)
