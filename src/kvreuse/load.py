"""The composition root: from the configuration of a model to an engine that serves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kvreuse.config import EngineConfig
from kvreuse.engine.bounds import check_pool
from kvreuse.engine.engine import Engine
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.model.calibrated import codec_for
from kvreuse.model.decoder import Decoder, load_decoder
from kvreuse.model.fetch.source import resolve
from kvreuse.model.identity import namespace_of
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.engine import EnginePlan, plan_engine
from kvreuse.shape import ModelShape
from kvreuse.text.chat import ChatTemplate, chat_template
from kvreuse.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are packed, and of all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to be served, and the engine that serves it."""

    config: EngineConfig
    shape: ModelShape
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    memory: EnginePlan
    """What the engine takes, in bytes; ``str()`` of it is one line."""
    pool: PagePool
    runner: Decoder
    engine: Engine


def load(config: EngineConfig, progress: Progress | None = None) -> Loaded:
    """Read the model that ``config`` names: what fails quickly first, the weights last.

    ModelFileError for a file that cannot be served, ConfigError for settings that cannot.
    """
    with open_checkpoint(resolve(config.model)) as checkpoint:  # closed once all is read
        shape = checkpoint.shape
        max_model_len = config.model_len(shape.context_length)
        codec = codec_for(
            checkpoint,
            config.kv_cache_dtype,
            config.calibration,
            force=config.force_kv_cache_dtype,
        )
        layout = KVLayout.of(shape, config.page_size, codec)
        backend = NativeBackend(config.isa, config.threads)
        memory = plan_engine(checkpoint, layout, config, backend)
        pool = backend.pool(layout, memory.pool.num_pages)
        if config.max_model_len is not None:
            check_pool(pool, max_model_len)
        tokenizer = Tokenizer(checkpoint.vocabulary)
        template = chat_template(checkpoint.chat_templates, tokenizer)
        cache = KVCache(
            pool,
            namespace_of(checkpoint, layout, backend.arithmetic),
            enable_prefix_caching=config.enable_prefix_caching,
            eviction_policy=config.eviction_policy,
            cost_growth=shape.attention_growth,
        )
        runner = load_decoder(checkpoint, backend, pool, config, progress)
    engine = Engine(
        runner,
        cache,
        tokenizer,
        vocab_size=shape.vocab_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        seed=config.seed,
    )
    return Loaded(config, shape, tokenizer, template, memory, pool, runner, engine)
