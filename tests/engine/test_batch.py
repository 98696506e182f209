"""BatchBuilder: the arrays of a BatchInput, element by element."""

from __future__ import annotations

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.engine.batch import BatchBuilder
from kvreuse.engine.request import Request
from kvreuse.kv.sequence import SeqKV
from kvreuse.ops.batch import BatchInput

BUILDER = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 256, "page_size": 32}


def open_request(prompt: list[int], pages: list[int], computed: int = 0) -> Request:
    """A request that owns ``pages`` and has its first ``computed`` tokens in them."""
    request = Request(Ask(prompt), "r", np.array(prompt, dtype=np.int32), max_tokens=16)
    request.kv = SeqKV(32, None, pages)
    request.num_computed_tokens = computed
    return request


def test_every_field_of_a_batch() -> None:
    builder = BatchBuilder(**BUILDER)
    decoding = open_request([5, 6, 7], [9], computed=3)
    decoding.append(8)
    chunk = open_request(list(range(100, 140)), [4, 7, 2], computed=30)
    whole = open_request([1, 2], [3, 5])
    for request, rows in ((decoding, 1), (chunk, 4), (whole, 2)):
        builder.add(request, rows)
    batch = builder.build()
    assert batch.ids.tolist() == [8, 130, 131, 132, 133, 1, 2]
    assert batch.positions.tolist() == [3, 30, 31, 32, 33, 0, 1]
    assert batch.row_seq.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert batch.tables.tolist() == [[9, 0, 0], [4, 7, 2], [3, 5, 0]]
    assert batch.kv_len.tolist() == [4, 34, 2]
    assert batch.sample_rows.tolist() == [0, 6]
    assert batch.copies == ()
    assert builder.sampling == [decoding, whole]
    assert builder.work == [(decoding, 1), (chunk, 4), (whole, 2)]


def test_nothing_of_the_batch_before_is_left() -> None:
    builder = BatchBuilder(**BUILDER)
    builder.add(open_request(list(range(16)), [1, 2, 3, 4, 5, 6, 7]), 16)
    builder.build()
    builder.clear()
    builder.add(open_request([7], [6, 1]), 1)
    builder.add(open_request([8, 9], [2]), 1)
    batch = builder.build()
    assert batch.tables.tolist() == [[6, 1], [2, 0]]
    assert batch.ids.tolist() == [7, 8]
    assert batch.sample_rows.tolist() == [0]
    assert batch.kv_len.tolist() == [1, 1]


def test_a_step_like_the_one_before_reuses_its_arrays() -> None:
    builder = BatchBuilder(**BUILDER)
    requests = [open_request([5, 6, 7], [9], computed=2), open_request([1, 2], [3, 5], computed=1)]

    def step() -> BatchInput:
        builder.clear()
        for request in requests:
            builder.add(request, 1)
        return builder.build()

    first = step()
    assert first.ids.tolist() == [7, 2]
    for request in requests:
        request.num_computed_tokens += 1
        request.append(40 + request.num_tokens)
    assert step() is first
    assert first.ids.tolist() == [43, 42]
    assert first.positions.tolist() == [3, 2]
    assert first.kv_len.tolist() == [4, 3]
    requests[1].kv = SeqKV(32, None, [3, 7])
    assert step().tables.tolist() == [[9, 0], [3, 7]]
    requests.reverse()
    assert step().tables.tolist() == [[3, 7], [9, 0]]
    requests.pop()
    assert step().tables.tolist() == [[3, 7]]
