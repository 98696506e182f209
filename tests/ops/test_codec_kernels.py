"""The kernels that encode rows and read them: any rows, numbers or not, against their twins."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.kv.codec.codec import KVCodec
from kvreuse.kv.layout import KVLayout
from kvreuse.ops import _native, reference
from kvreuse.shape import ModelShape, RopeSpec, attention

from ..kv_codecs import codec_for

Float32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Pages = npt.NDArray[np.uint8]

HEADS, GROUP, TOKENS = 2, 3, 40
CODECS = ("int8", "int4", "k8v4", "auto")


def spec_of(head_dim: int) -> ModelShape:
    return ModelShape(
        architecture="llama",
        layers=(attention(HEADS, head_dim),) * 1,
        hidden_size=64,
        intermediate_size=64,
        num_heads=HEADS * GROUP,
        vocab_size=9,
        context_length=64,
        rms_norm_eps=1e-5,
        rope=RopeSpec("half", 1e4, head_dim),
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """One sequence of 40 tokens in two pages; all of its rows in one batch."""

    spec: ModelShape
    codec: KVCodec
    qkv: Float32
    """float32[40, (heads + 2 kv heads) * head_dim]."""

    @property
    def layout(self) -> KVLayout:
        return KVLayout.of(self.spec, codec=self.codec)

    def pages(self) -> Pages:
        return np.full((2, self.layout.page_bytes), 0xFF, dtype=np.uint8)

    def native(self, isa: str) -> tuple[Float32, Pages]:
        """What attention gives ``[40, heads * head_dim]``, and the pages."""
        spec, layout, pages = self.spec, self.layout, self.pages()
        kernels = _native.Kernels(isa, 2)
        view = _native.KVView(
            pages, 32, 1, HEADS, GROUP, spec.head_dim, layout.codec_ids(), layout.clips()
        )
        tables = reference.rope_tables(spec.rope, TOKENS)
        rotary = _native.Rotary(*tables, False)
        transform = self.codec.transform(0)
        assert transform is not None
        constant, scale = (
            None if x is None else x.reshape(-1) for x in (transform.constant, transform.scale)
        )
        layer = _native.Attention(
            view,
            rotary,
            0,
            float(np.log2(np.e) / np.sqrt(spec.head_dim)),
            key_constant=constant,
            key_scale=scale,
            hadamard_keys=transform.hadamard_keys,
            hadamard_values=transform.hadamard_values,
        )
        batch = _native.Batch(
            TOKENS, 1, 1, 2, 32, 2, vocabulary=9, positions=TOKENS, group_size=GROUP
        )
        at = np.arange(TOKENS, dtype=np.int32)
        batch.load(
            at * 0,
            at,
            at * 0,
            np.array([[1, 0]], dtype=np.int32),
            np.array([TOKENS], dtype=np.int32),
            np.zeros(0, dtype=np.int32),
            1,
        )
        width, heads = spec.q_size, spec.num_heads
        space = _native.Workspace(2, TOKENS, 64, width, GROUP, heads, spec.head_dim, 64)
        qkv, out = _native.Tensor(*self.qkv.shape), _native.Tensor(TOKENS, width)
        qkv.numpy()[:] = self.qkv
        kernels.attend(space, batch, layer, qkv, out)
        return out.numpy().copy(), pages

    def twin(self) -> tuple[Float32, Pages]:
        """The same from the reference."""
        spec, pages, at = self.spec, self.pages(), np.arange(TOKENS, dtype=np.int32)
        rows = self.qkv.reshape(TOKENS, -1, spec.head_dim)
        q, k, v = np.split(rows, [spec.num_heads, spec.num_heads + HEADS], axis=1)
        tables = reference.rope_tables(spec.rope, TOKENS)
        q, k = (reference.rope(x, at, tables, spec.rope) for x in (q, k))
        transform, table = self.codec.transform(0), np.array([1, 0], dtype=np.int32)
        reference.write_rows(
            pages,
            self.layout,
            0,
            (table[at // 32], at % np.int32(32)),
            k=reference.transform_keys(k, transform),
            v=reference.transform_values(v, transform),
        )
        seen = reference.attend(
            reference.transform_queries(reference.scale_queries(q, spec.head_dim), transform),
            pages,
            self.layout,
            layer=0,
            tables=table[None],
            kv_len=np.array([TOKENS], dtype=np.int32),
            positions=at,
            row_seq=at * 0,
        )
        heads = reference.restore_values(seen.reshape(TOKENS, -1, spec.head_dim), transform)
        return heads.reshape(TOKENS, -1), pages


def rows(spec: ModelShape, seed: int = 0, spread: int = 0) -> Float32:
    """Random rows; with a ``spread``, each times a power of two of up to that exponent."""
    rng = np.random.default_rng(seed)
    shape = (TOKENS, spec.q_size + 2 * spec.kv_size)
    powers = rng.integers(-spread, spread + 1, (TOKENS, 1))
    return (rng.standard_normal(shape) * np.exp2(powers)).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 48, 80, 144, 256])
@pytest.mark.parametrize("name", CODECS)
def test_odd_heads(name: str, head_dim: int, isa: str) -> None:
    spec = spec_of(head_dim)
    run = Run(spec, codec_for(spec, name, first=3), rows(spec))
    for found, expected in zip(run.native(isa), run.twin(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", CODECS)
def test_rows_of_every_size(name: str, isa: str) -> None:
    """From denormals to numbers beyond half precision; bytes also far beyond."""
    spec = spec_of(64)
    codec = codec_for(spec, name, first=4)
    run = Run(spec, codec, rows(spec, spread=20))
    (found, pages), (expected, twin_pages) = run.native(isa), run.twin()
    np.testing.assert_array_equal(pages, twin_pages)
    np.testing.assert_array_equal(found, expected)
    with np.errstate(over="ignore"):
        run = Run(spec, codec, rows(spec, spread=140))
    np.testing.assert_array_equal(run.native(isa)[1], run.twin()[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["query", "key", "value"])
@pytest.mark.parametrize("name", CODECS)
def test_what_is_no_number_reaches_only_those_who_see_it(
    name: str, what: str, bad: float, isa: str
) -> None:
    """One channel of token 9 is none: rows before it stay what they were, those after are none."""
    spec, token = spec_of(64), 9
    codec = codec_for(spec, name, first=4)
    clean = Run(spec, codec, rows(spec))
    column = {"query": 5, "key": spec.q_size + 5, "value": spec.q_size + spec.kv_size + 5}[what]
    damaged = dataclasses.replace(clean, qkv=clean.qkv.copy())
    damaged.qkv[token, column] = bad
    (found, pages), (_, twin_pages) = damaged.native(isa), damaged.twin()
    np.testing.assert_array_equal(pages, twin_pages)
    expected = clean.native(isa)[0]
    heads = slice(0, GROUP * spec.head_dim) if what != "query" else slice(0, spec.head_dim)
    last = token + 1 if what == "query" else TOKENS
    lost = np.zeros(found.shape, dtype=bool)
    lost[token:last, heads] = True
    assert all(np.isnan(found[row, heads]).any() for row in range(token, last))
    np.testing.assert_array_equal(found[~lost], expected[~lost])
