"""Weights of a model, repacked from its GGUF file into the kernels' layouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kvreuse.ops.native import Arena, Kernels, Matrix, Projection

from .container import GGUFFile
from .ggml import GGMLType
from .spec import ModelSpec

Norm = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Outputs of ``qkv`` are queries, keys, values; of ``gate_up`` gate, then up."""

    attention_norm: Norm
    qkv: Projection
    output: Projection
    ffn_norm: Norm
    gate_up: Projection
    down: Projection


@dataclasses.dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a model. ``embedding`` and the matrix of ``logits`` are one where they are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    output_norm: Norm
    logits: Projection

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrices."""
        matrices = {id(matrix): matrix.nbytes for matrix in self.matrices()}
        return sum(matrices.values())

    def matrices(self) -> list[Matrix]:
        """Every packed matrix; a tied one comes twice."""
        projections = [self.logits]
        for layer in self.layers:
            projections += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return [self.embedding, *(part for p in projections for part in p.parts)]


def load_weights(file: GGUFFile, spec: ModelSpec, kernels: Kernels) -> ModelWeights:
    """Repack all weights that ``read_spec`` has checked. Exact: no value changes."""

    arena = Arena()

    def norm(name: str) -> Norm:
        return _floats(file, name)

    def projection(*names: str) -> Projection:
        return Projection([kernels.pack(run, arena) for run in _runs_of_one_type(file, names)])

    def layer(i: int) -> LayerWeights:
        b = f"blk.{i}."
        return LayerWeights(
            attention_norm=norm(b + "attn_norm.weight"),
            qkv=projection(b + "attn_q.weight", b + "attn_k.weight", b + "attn_v.weight"),
            output=projection(b + "attn_output.weight"),
            ffn_norm=norm(b + "ffn_norm.weight"),
            gate_up=projection(b + "ffn_gate.weight", b + "ffn_up.weight"),
            down=projection(b + "ffn_down.weight"),
        )

    embedding = kernels.pack([_source(file, "token_embd.weight")], arena)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layer(i) for i in range(spec.num_layers)),
        output_norm=norm("output_norm.weight"),
        logits=Projection([embedding]) if spec.tied_embeddings else projection("output.weight"),
    )


Source = tuple[npt.NDArray[np.uint8], int, int, int]


def _source(file: GGUFFile, name: str) -> Source:
    """A matrix as the kernels' packer takes it: bytes, type, rows, columns."""
    tensor = file.tensors[name]
    rows, columns = tensor.shape
    return file.data(name), int(tensor.type), rows, columns


def _runs_of_one_type(file: GGUFFile, names: tuple[str, ...]) -> list[list[Source]]:
    """The matrices in order, neighbours of one type together: they become one packed matrix."""
    runs: list[list[Source]] = []
    for name in names:
        source = _source(file, name)
        if runs and runs[-1][-1][1] == source[1]:
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def _floats(file: GGUFFile, name: str) -> Norm:
    """A vector of F32, F16 or BF16 as float32, exactly."""
    data = file.data(name)
    kind = file.tensors[name].type
    if kind == GGMLType.F32:
        return data.view(np.float32).copy()
    if kind == GGMLType.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
