"""EngineConfig: everything that can be set about an engine. The command line's flags are these."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvreuse.errors import ConfigError, shown
from kvreuse.sizes import available_memory, format_size, parse_size

KV_CACHE_DTYPES = ("bf16", "int8", "int4", "k8v4", "auto")
"""Names of the codecs of keys and values, see ``kv.codec``."""

EVICTION_POLICIES = ("hit-density", "lru")
"""Names of the rules by which unused pages are evicted, see ``kv.evict``; the first is usual."""

MOST = {
    "max_num_batched_tokens": 1 << 20,
    "max_num_seqs": 1 << 16,
    "page_size": 1 << 16,
    "max_model_len": 1 << 30,
    "threads": 1024,
}
"""The largest values that mean something; buffers are taken for them."""

DEFAULT_MEMORY_SHARE = 0.25
"""Share of the available memory that the KV cache takes where nothing is said."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. Raises ConfigError, naming flag and value, for one out of range."""

    model: str
    """A GGUF file, or a name that ``kvreuse pull`` knows."""
    kv_cache_memory: int | str | None = None
    """Memory for keys and values, in bytes or as text such as ``2GiB``; None: 25% of what is
    available to this process."""
    max_model_len: int | None = None
    """Longest sequence, prompt and answer, in tokens; None: what the model was made for."""
    max_num_batched_tokens: int = 512
    """Tokens computed in one step: decoding sequences first, chunks of prompts with the rest."""
    max_num_seqs: int = 64
    """Sequences served at once."""
    kv_cache_dtype: str = "bf16"
    """How keys and values are stored: bf16, int8, int4, k8v4 (keys int8, values int4), or auto
    (chosen for each layer and head by ``kvreuse calibrate``)."""
    calibration: str | None = None
    """A file that ``kvreuse calibrate`` wrote; None: the one in the cache folder, if there is."""
    force_kv_cache_dtype: bool = False
    """Use a codec also where calibration found it to ruin the model's answers."""
    enable_prefix_caching: bool = True
    """Reuse keys and values of prefixes that were computed before."""
    eviction_policy: str = EVICTION_POLICIES[0]
    """Which unused pages go first where memory is needed: hit-density learns which are worth
    least, lru takes those used longest ago."""
    page_size: int = 32
    """Tokens in a page of the KV cache; a multiple of 32."""
    threads: int | None = None
    """Threads of the kernels; None: one for each core that this process may use."""
    isa: str | None = None
    """Instruction-set path of the kernels; None: the fastest that this machine has."""
    seed: int = 0
    """Seeds the sampling of requests that bring no seed of their own."""

    def __post_init__(self) -> None:
        """Check every field that can be checked without model and machine."""
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be a path or a name, got {self.model!r}")
        for name, most in MOST.items():
            if getattr(self, name) is not None:
                _in_range(name, getattr(self, name), 1, most)
        _in_range("seed", self.seed, 0, 2**64 - 1)
        if self.eviction_policy not in EVICTION_POLICIES:
            raise ConfigError(
                f"--eviction-policy must be one of {', '.join(EVICTION_POLICIES)}, "
                f"got {self.eviction_policy!r}"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(
                f"--kv-cache-dtype must be one of {', '.join(KV_CACHE_DTYPES)}, "
                f"got {self.kv_cache_dtype!r}"
            )
        if self.kv_cache_memory is not None:
            parse_size(self.kv_cache_memory, "--kv-cache-memory")

    def kv_cache_bytes(self) -> int:
        """Bytes for the KV cache: what was asked for, or a quarter of what is available now.

        ConfigError if more was asked for than there is.
        """
        available = available_memory()
        if self.kv_cache_memory is None:
            return int(available * DEFAULT_MEMORY_SHARE)
        asked = parse_size(self.kv_cache_memory, "--kv-cache-memory")
        if asked > available:
            raise ConfigError(
                f"--kv-cache-memory asks for {format_size(asked)}, "
                f"but {format_size(available)} are available"
            )
        return asked

    def model_len(self, context_length: int) -> int:
        """Longest sequence to serve of a model made for ``context_length`` tokens."""
        if self.max_model_len is None:
            return context_length
        if self.max_model_len > context_length:
            raise ConfigError(
                f"--max-model-len is {self.max_model_len}, "
                f"but the model was made for {context_length} tokens"
            )
        return self.max_model_len


def _in_range(name: str, value: Any, least: int, most: int) -> None:
    """ConfigError unless ``value`` is an int from ``least`` to ``most``."""
    flag = "--" + name.replace("_", "-")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{flag} must be an integer of at least {least}, got {shown(value)}")
    if value > most:
        raise ConfigError(f"{flag} must be at most {most}, got {shown(value)}")
