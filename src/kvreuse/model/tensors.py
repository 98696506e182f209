"""The tensors of a model: what each one is for, and which ones a model of a given shape has.

The forward pass asks for a tensor by its role and its layer. A file format has its own names for
them; it only needs a table from roles to names, and ``by_weight`` checks the rest.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvreuse.errors import ModelFileError, shown
from kvreuse.ops.tensor_types import MATRIX_TYPES, VECTOR_TYPES, TensorType
from kvreuse.shape import ModelShape

Dims = tuple[int, ...]
"""(rows, columns) of a matrix, (size,) of a vector."""


class Role(enum.Enum):
    """What a tensor is for. Matrices are (outputs, inputs), norms and biases are vectors."""

    EMBEDDING = enum.auto()
    """One row for each token; also the matrix of the logits where both are tied."""
    OUTPUT_NORM = enum.auto()
    LOGITS = enum.auto()
    ROPE_FACTORS = enum.auto()
    """Divisors of the rotary frequencies, where a file has them as a tensor; see ``RopeSpec``."""

    ATTENTION_NORM = enum.auto()
    QUERY = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()
    ATTENTION_OUTPUT = enum.auto()
    FFN_NORM = enum.auto()
    GATE = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()
    QUERY_BIAS = enum.auto()
    KEY_BIAS = enum.auto()
    VALUE_BIAS = enum.auto()
    QUERY_NORM = enum.auto()
    KEY_NORM = enum.auto()
    POST_ATTENTION_NORM = enum.auto()
    POST_FFN_NORM = enum.auto()


class Weight(NamedTuple):
    """A tensor of a model: its role, and its layer unless it belongs to none."""

    role: Role
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a checkpoint stores it: ``nbytes`` bytes, row after row.

    ``name`` is the file's own name for it, for messages.
    """

    name: str
    type: TensorType
    shape: Dims
    nbytes: int


def weights_of(shape: ModelShape) -> Iterator[tuple[Weight, Dims]]:
    """Every tensor that the forward pass of such a model reads, with its dimensions."""
    yield Weight(Role.EMBEDDING), (shape.vocab_size, shape.hidden_size)
    yield Weight(Role.OUTPUT_NORM), (shape.hidden_size,)
    if not shape.tied_embeddings:
        yield Weight(Role.LOGITS), (shape.vocab_size, shape.hidden_size)
    for layer in range(shape.num_layers):
        for role, dims in _layer_weights(shape):
            yield Weight(role, layer), dims


def _layer_weights(shape: ModelShape) -> Iterator[tuple[Role, Dims]]:
    """Those of one layer."""
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    yield Role.ATTENTION_NORM, (hidden,)
    yield Role.QUERY, (shape.q_size, hidden)
    yield Role.KEY, (shape.kv_size, hidden)
    yield Role.VALUE, (shape.kv_size, hidden)
    yield Role.ATTENTION_OUTPUT, (hidden, shape.q_size)
    yield Role.FFN_NORM, (hidden,)
    yield Role.GATE, (ffn, hidden)
    yield Role.UP, (ffn, hidden)
    yield Role.DOWN, (hidden, ffn)
    if shape.qkv_bias:
        yield Role.QUERY_BIAS, (shape.q_size,)
        yield Role.KEY_BIAS, (shape.kv_size,)
        yield Role.VALUE_BIAS, (shape.kv_size,)
    if shape.qk_norm:
        yield Role.QUERY_NORM, (shape.head_dim,)
        yield Role.KEY_NORM, (shape.head_dim,)
    if shape.post_norms:
        yield Role.POST_ATTENTION_NORM, (hidden,)
        yield Role.POST_FFN_NORM, (hidden,)


def by_weight(
    stored: Mapping[str, StoredTensor],
    expected: Mapping[Weight, Dims],
    name_of: Callable[[Weight], str],
    source: str,
) -> dict[Weight, StoredTensor]:
    """The tensors of a file, in the file's order, under the weights that they are.

    ``stored`` has them by name, ``expected`` says which there must be, and ``source`` is the file's
    name for messages. Raises ``ModelFileError`` where one is missing, has another shape or a type
    that is not served, and where the file has a tensor more: a tensor that would not be read (a
    bias, an expert) means another computation than ours.
    """
    weights = {name_of(weight): weight for weight in expected}
    for name, weight in weights.items():
        if (tensor := stored.get(name)) is None:
            raise ModelFileError(f"{source}: the tensor {shown(name)} is missing")
        if problem := _problem(tensor, expected[weight]):
            raise ModelFileError(f"{source}: {problem}")
    for name in stored:
        if name not in weights:
            raise ModelFileError(
                f"{source}: the tensor {shown(name)} belongs to a feature that is not supported"
            )
    return {weights[name]: tensor for name, tensor in stored.items()}


def _problem(tensor: StoredTensor, dims: Dims) -> str:
    """What is wrong with a tensor that should have these dimensions; empty if nothing is."""
    if tensor.shape != dims:
        return f"the tensor {shown(tensor.name)} is {_times(tensor.shape)}, not {_times(dims)}"
    served = MATRIX_TYPES if len(dims) == 2 else VECTOR_TYPES
    if tensor.type not in served:
        names = ", ".join(kind.name for kind in sorted(served))
        kind = tensor.type.name
        return f"{shown(tensor.name)} has the tensor type {kind}; supported here: {names}"
    return ""


def _times(dims: Dims) -> str:
    return " x ".join(map(str, dims))
