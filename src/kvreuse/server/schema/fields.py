"""Fields that the bodies of several routes share."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvreuse.api.retention import DEFAULT_RETENTION, MAX_TTL, Retention
from kvreuse.api.sampling_params import SamplingParams

BIG = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=BIG)]
Count = Annotated[int, Field(ge=1, le=BIG)]
Salt = Annotated[str, Field(min_length=1, max_length=1024)]
Unsupported = Annotated[None, Field(description="Not supported: null only.")]


class Body(BaseModel):
    """The body of a request: values are not converted, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelBody(Body):
    """The body of a request that may name the model."""

    model: str | None = None


class Retain(Body):
    """How soon a request is served, and how long its pages stay once it has ended."""

    pin: bool = Field(
        False,
        description="Keep the prompt's full pages until the ttl is over, or a request that starts "
        "with them ends its session. At most half of the cache can be pinned.",
    )
    ttl: float | None = Field(
        None,
        gt=0,
        le=MAX_TTL,
        description="Seconds after the end when its own pages become the first to go.",
    )
    priority: int = Field(
        0,
        ge=-100,
        le=100,
        description="Lower ones are served first, and their pages stay longer.",
    )
    session_end: bool = Field(
        False, description="Nobody goes on from here: its own pages are the first to go."
    )

    def retention(self) -> Retention:
        """As the engine takes it."""
        return Retention(self.pin, self.ttl, self.priority, self.session_end)


class JSONSchema(Body):
    """A schema with a name."""

    name: str = Field(max_length=256)
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """Plain text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class Structure(Body):
    """The form that an answer must match, with vLLM's names; one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = Field(None, min_length=1)
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(None, min_length=1)
    grammar: str | None = Field(None, min_length=1)


class StreamOptions(Body):
    """Further contents of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Taken, and without effect.")


class Sampling(ModelBody):
    """How answers are generated, and what replies contain; OpenAI's fields and vLLM's."""

    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=1e6)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=BIG)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=1e-2, le=1e2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=64)]
        | None
    ) = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=1024)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=BIG)
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Structure | None = None
    cache_salt: Salt | None = None
    kvreuse: Retain | None = None
    prompt_cache_key: str | None = Field(None, max_length=1024, description="Put in the log.")
    user: str | None = Field(None, max_length=1024, description="Put in the log.")
    safety_identifier: str | None = Field(None, max_length=1024, description="Taken, no effect.")
    metadata: dict[str, Any] | None = Field(None, description="Taken, and without effect.")
    store: bool | None = Field(None, description="Taken, and without effect.")
    service_tier: str | None = Field(None, description="Taken, and without effect.")
    logit_bias: Unsupported = None
    prompt_logprobs: Unsupported = None

    @property
    def retention(self) -> Retention:
        """How long its pages stay."""
        return DEFAULT_RETENTION if self.kvreuse is None else self.kvreuse.retention()

    @property
    def answers(self) -> int:
        """``n``, whether given or not."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(self, *, max_tokens: int | None, **own: Any) -> SamplingParams:
        """The engine's parameters; fields left out have vLLM's defaults, ``own`` overrides."""
        values = {name: getattr(self, name) for name in _SHARED}
        if self.seed is not None:
            values["seed"] = self.seed % 2**64
        values |= own
        given = {name: one for name, one in values.items() if one is not None}
        return SamplingParams(max_tokens=max_tokens, **given)


_SHARED = [
    field.name
    for field in dataclasses.fields(SamplingParams)
    if field.name in Sampling.model_fields
    and field.name not in {"max_tokens", "structured_outputs"}
]
