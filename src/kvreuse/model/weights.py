"""Weights of a model, repacked from its GGUF file into the kernels' layouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kvreuse.ops.native import Arena, Kernels, Matrix, Projection

from .container import GGUFFile
from .ggml import GGMLType
from .spec import ModelSpec

Vector = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Outputs of ``qkv`` are queries, keys, values; of ``gate_up`` gate, then up.

    What an architecture lacks is None: ``qkv_bias`` float32[q + 2 kv], ``q_norm`` and ``k_norm``
    float32[head_dim], ``post_attention_norm`` and ``post_ffn_norm`` float32[hidden].
    """

    attention_norm: Vector
    qkv: Projection
    output: Projection
    ffn_norm: Vector
    gate_up: Projection
    down: Projection
    qkv_bias: Vector | None = None
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    post_attention_norm: Vector | None = None
    post_ffn_norm: Vector | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a model. ``embedding`` and the matrix of ``logits`` are one where they are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    output_norm: Vector
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

    def vector(name: str) -> Vector:
        return _floats(file, name)

    def vector_if(there: bool, *names: str) -> Vector | None:
        return np.concatenate([vector(name) for name in names]) if there else None

    def projection(*names: str) -> Projection:
        return Projection([kernels.pack(run, arena) for run in _runs_of_one_type(file, names)])

    def layer(i: int) -> LayerWeights:
        b = f"blk.{i}."
        return LayerWeights(
            attention_norm=vector(b + "attn_norm.weight"),
            qkv=projection(b + "attn_q.weight", b + "attn_k.weight", b + "attn_v.weight"),
            output=projection(b + "attn_output.weight"),
            ffn_norm=vector(b + "ffn_norm.weight"),
            gate_up=projection(b + "ffn_gate.weight", b + "ffn_up.weight"),
            down=projection(b + "ffn_down.weight"),
            qkv_bias=vector_if(spec.qkv_bias, *(f"{b}attn_{x}.bias" for x in "qkv")),
            q_norm=vector_if(spec.qk_norm, b + "attn_q_norm.weight"),
            k_norm=vector_if(spec.qk_norm, b + "attn_k_norm.weight"),
            post_attention_norm=vector_if(spec.post_norms, b + "post_attention_norm.weight"),
            post_ffn_norm=vector_if(spec.post_norms, b + "post_ffw_norm.weight"),
        )

    embedding = kernels.pack([_source(file, "token_embd.weight")], arena)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layer(i) for i in range(spec.num_layers)),
        output_norm=vector("output_norm.weight"),
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


def _floats(file: GGUFFile, name: str) -> Vector:
    """A vector of F32, F16 or BF16 as float32, exactly."""
    data = file.data(name)
    kind = file.tensors[name].type
    if kind == GGMLType.F32:
        return data.view(np.float32).copy()
    if kind == GGMLType.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
