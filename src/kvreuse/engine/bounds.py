"""Checks of a prompt against the limits of model and pool, and the longest answer it may have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvreuse.errors import ConfigError, ContextLengthError, RequestError
from kvreuse.kv.pool import PagePool
from kvreuse.ops.batch import Int32Array
from kvreuse.sizes import format_size


def checked_ids(prompt_ids: Sequence[int] | Int32Array, vocab_size: int) -> Int32Array:
    """A copy of the prompt as int32[n]. RequestError if it is empty or an id is out of range."""
    try:
        ids = np.array(prompt_ids)
    except ValueError:  # lists of unequal lengths
        ids = np.empty((0, 0))
    if ids.shape == (0,):
        raise RequestError("the prompt is empty: it needs at least one token")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError("the prompt's token ids must be a list of integers")
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= vocab_size:
        raise RequestError(
            f"token id {least if least < 0 else most} is not in the vocabulary: "
            f"ids go from 0 to {vocab_size - 1}"
        )
    return ids.astype(np.int32)


def room_for_answer(
    num_prompt: int, max_tokens: int | None, max_model_len: int, pool: PagePool
) -> int:
    """Tokens that the answer may have. ContextLengthError if prompt and answer can never fit.

    The context limits every answer; the size of the pool limits one without ``max_tokens``.
    """
    if num_prompt >= max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt} tokens, but prompt and answer together may have "
            f"{max_model_len}: shorten it or raise --max-model-len",
            max_model_len,
        )
    room, layout = max_model_len - num_prompt, pool.layout
    if max_tokens is None:
        # At least one token, so that a prompt which does not fit is refused below.
        room = max(1, min(room, pool.num_pages * layout.page_size - num_prompt + 1))
    else:
        room = min(room, max_tokens)
    needed = layout.pages_for(num_prompt + room - 1)
    if needed > pool.num_pages:
        answer = f" and the {room} it may generate" if room > 1 else ""
        raise ContextLengthError(
            f"the prompt's {num_prompt} tokens{answer} need {needed} pages of "
            f"{layout.page_size}, but the KV cache has {pool.num_pages} "
            f"({format_size(pool.nbytes)} at {format_size(layout.bytes_per_token)} a token): "
            "raise --kv-cache-memory",
            min(max_model_len, pool.num_tokens),
        )
    return room


def check_pool(pool: PagePool, max_model_len: int) -> None:
    """ConfigError if one sequence of ``max_model_len`` tokens does not fit ``pool``."""
    layout = pool.layout
    needed = layout.pages_for(max_model_len)
    if needed > pool.num_pages:
        raise ConfigError(
            f"--max-model-len {max_model_len} needs {needed} pages "
            f"({format_size(needed * layout.page_bytes)}), but the KV cache has {pool.num_pages} "
            f"({format_size(pool.nbytes)}): raise --kv-cache-memory or lower --max-model-len"
        )
