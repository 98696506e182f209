"""LLM: a model, its tokenizer and an engine, for use in a program of one thread."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.api.progress import prompts_bar
from kvreuse.api.prompts import (
    Conversation,
    ParsedPrompt,
    Prompt,
    parse_conversations,
    parse_params,
    parse_prompt,
    parse_prompts,
)
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.config import EngineConfig
from kvreuse.engine.bounds import check_pool
from kvreuse.engine.delta_stream import DeltaStream
from kvreuse.engine.engine import Engine
from kvreuse.errors import RequestError
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.model.calibrated import codec_for
from kvreuse.model.decoder import load_decoder
from kvreuse.model.fetch.source import resolve
from kvreuse.model.gguf.read import GGUFFile, read_spec
from kvreuse.model.identity import namespace_of
from kvreuse.model.weights import Repacked
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.engine import plan_engine
from kvreuse.text.chat import ChatTemplate
from kvreuse.text.parts import PromptParts, prompt_parts
from kvreuse.text.tokenizer import Tokenizer
from kvreuse.text.turns import TurnMemory

Progress = Callable[[int, int], None]
"""Called with what is done and what there is in all: prompts, or bytes of weights."""


class LLM:
    """A loaded model that answers prompts. vLLM's names.

    ::

        llm = LLM("smollm2-135m", kv_cache_memory="512MiB")
        outputs = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=32))
        print(outputs[0].outputs[0].text)

    ``generate``, ``chat`` and ``stream`` may be used in turn, also while a stream is open; all
    requests share the engine's steps. ``close``, or leaving a ``with`` block, gives back memory.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        """``options`` are the other fields of :class:`EngineConfig`; ``progress`` is of loading.

        ModelFileError for a file that cannot be served, ConfigError for options that cannot.
        """
        self.config = EngineConfig(model=os.fspath(model), **options)
        with GGUFFile(resolve(self.config.model)) as file:  # unmapped once all is read
            self._load(file, progress)

    def _load(self, file: GGUFFile, progress: Progress | None) -> None:
        """Read ``file``: what fails quickly first, the weights last."""
        config = self.config
        self.spec = read_spec(file)
        max_model_len = config.model_len(self.spec.context_length)
        codec = codec_for(
            file,
            self.spec,
            config.kv_cache_dtype,
            config.calibration,
            force=config.force_kv_cache_dtype,
        )
        layout = KVLayout.of(self.spec, config.page_size, codec)
        backend = NativeBackend(config.isa, config.threads)
        self.memory = plan_engine(file, self.spec, layout, config, backend)
        """What the engine takes, in bytes; ``str()`` of it is one line."""
        self.pool = backend.pool(layout, self.memory.pool.num_pages)
        if config.max_model_len is not None:
            check_pool(self.pool, max_model_len)
        self.tokenizer = Tokenizer.from_gguf(file)
        self.chat_template = ChatTemplate.from_gguf(file, self.tokenizer)
        self.turns = TurnMemory(self.tokenizer)
        self.cache = KVCache(
            self.pool,
            namespace_of(file, self.spec, layout, backend.arithmetic),
            enable_prefix_caching=config.enable_prefix_caching,
            eviction_policy=config.eviction_policy,
            cost_growth=self.spec.attention_growth,
        )
        self.runner = load_decoder(file, self.spec, backend, self.pool, config, progress)
        self.engine = Engine(
            self.runner,
            self.cache,
            self.tokenizer,
            vocab_size=self.spec.vocab_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            seed=config.seed,
        )
        self._sinks: dict[str, Callable[[Delta], None]] = {}
        self._deltas: deque[Delta] = deque()  # of a step, to be handed out

    @property
    def repacked(self) -> tuple[Repacked, ...]:
        """What loading made of the weights of each tensor type, with the largest change of any."""
        return self.runner.weights.repacked

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        progress: Progress | None = None,
        retention: Retention | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of them; the results are in the order of the prompts.

        A prompt is text, ``{"prompt": text}``, ``{"prompt_token_ids": ids}`` or a list of ids; the
        dictionaries may have a ``cache_salt``: only prompts of the same one share pages.
        One SamplingParams for all, or a list with one for each; ``retention`` says how soon they
        are served and how long their pages stay. RequestError, before anything is
        computed, if one of them cannot be served.

        ``use_tqdm``, named as in vLLM: a bar on standard error; None: only on a terminal, and where
        several prompts take more than a second. ``progress`` is called as prompts are finished.
        """
        wanted = retention or DEFAULT_RETENTION
        parsed = [replace(one, retention=wanted) for one in parse_prompts(prompts)]
        params = parse_params(sampling_params, len(parsed))
        return self._answer(parsed, params, use_tqdm, progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        progress: Progress | None = None,
        cache_salt: str | None = None,
        retention: Retention | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of ``{"role": ..., "content": ...}``, or a list of them.

        ``cache_salt`` and ``retention`` are those of a prompt, ``template_options`` go to the chat
        template. The next turn of a conversation has the tokens that its turns were served with
        (:class:`TurnMemory`). RequestError as for :meth:`generate`, and if the model has no chat
        template.
        """
        parsed = [
            replace(
                self.chat_prompt(conversation, cache_salt=cache_salt, **template_options),
                retention=retention or DEFAULT_RETENTION,
            )
            for conversation in parse_conversations(messages)
        ]
        params = parse_params(sampling_params, len(parsed))
        return self._answer(parsed, params, use_tqdm, progress)

    def stream(
        self,
        prompt: Prompt | ParsedPrompt,
        sampling_params: SamplingParams | None = None,
        *,
        retention: Retention | None = None,
    ) -> DeltaStream:
        """Answer one prompt token by token. The request is queued, or RequestError raised, now."""
        parsed = prompt if isinstance(prompt, ParsedPrompt) else parse_prompt(prompt)
        if retention is not None:
            parsed = replace(parsed, retention=retention)
        inbox: deque[Delta] = deque()
        request_id = self._add(parsed, sampling_params or SamplingParams(), inbox.append)
        return DeltaStream(request_id, inbox, step=self._step, abort=self._abort)

    def chat_prompt(
        self, messages: Conversation, /, *, cache_salt: str | None = None, **template_options: Any
    ) -> ParsedPrompt:
        """The prompt that the chat template makes of a conversation, for :meth:`stream`."""
        if self.chat_template is None:
            raise RequestError("the model has no chat template: give it a prompt, not a chat")
        template = self.chat_template
        text = template.render(messages, **template_options)
        ids = self.turns.encode(text, cache_salt)

        @functools.cache
        def parts() -> PromptParts:
            return prompt_parts(template, text, messages, **template_options)

        return ParsedPrompt(text, ids, cache_salt, part_of=lambda at: str(parts().at(at)))

    def remember(self, prompt: ParsedPrompt, output: RequestOutput) -> None:
        """Keep the tokens of a chat's answers for its next turn; other prompts are left alone.

        ``generate``, ``chat`` and ``stream`` do it by themselves; it is for who serves
        :meth:`chat_prompt` on the engine directly.
        """
        if prompt.part_of is None or prompt.text is None:
            return
        for answer in output.outputs:
            self.turns.remember(
                prompt.text, output.prompt_token_ids, answer.token_ids, prompt.cache_salt
            )

    def close(self) -> None:
        """Abort what is being served and let go of the model and the pool. Twice is allowed."""
        for request_id in list(self._sinks):
            self._abort(request_id)
        # Runner and engine hold weights and pages: they go first.
        self.__dict__.pop("runner", None)
        self.__dict__.pop("engine", None)
        self.__dict__.pop("cache", None)
        self.pool.close()

    def __enter__(self) -> LLM:
        """``with LLM(...) as llm`` closes it at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _answer(
        self,
        prompts: list[ParsedPrompt],
        params: list[SamplingParams],
        use_tqdm: bool | None,
        progress: Progress | None,
    ) -> list[RequestOutput]:
        """Serve all ``prompts``; none of them outlives this call, whatever ends it."""
        finished: dict[str, RequestOutput] = {}

        def collect(delta: Delta) -> None:
            count(delta)
            if delta.output is not None:
                finished[delta.request_id] = delta.output
                if progress is not None:
                    progress(len(finished), len(prompts))

        request_ids: list[str] = []
        try:
            with prompts_bar(len(prompts), use_tqdm) as count:
                for prompt, one in zip(prompts, params, strict=True):
                    request_ids.append(self._add(prompt, one, collect))
                while len(finished) < len(prompts):
                    self._step()
        except BaseException:
            for request_id in request_ids:
                self._abort(request_id)
            raise
        return [finished[request_id] for request_id in request_ids]

    def _add(
        self, prompt: ParsedPrompt, params: SamplingParams, sink: Callable[[Delta], None]
    ) -> str:
        """Queue a prompt whose deltas go to ``sink``."""
        if "engine" not in self.__dict__:
            raise RequestError("the LLM is closed")
        ids = prompt.token_ids
        if ids is None:
            ids = self.tokenizer.encode(prompt.text or "")
        request_id = self.engine.add_request(
            ids,
            params,
            prompt=prompt.text,
            cache_salt=prompt.cache_salt,
            retention=prompt.retention,
            part_of=prompt.part_of,
        )

        def take(delta: Delta) -> None:
            if delta.output is not None:
                self.remember(prompt, delta.output)
            sink(delta)

        self._sinks[request_id] = take
        return request_id

    def _abort(self, request_id: str) -> None:
        """Forget a request, ended or not."""
        self._sinks.pop(request_id, None)
        if "engine" in self.__dict__:
            self.engine.abort(request_id)

    def _step(self) -> None:
        """One step of the engine; every delta to the one who waits for it.

        Where one of them raises, the others get theirs next time.
        """
        if not self._deltas:
            if "engine" not in self.__dict__ or not self.engine.has_unfinished:
                raise RequestError("the request is not being served any more")
            self._deltas.extend(self.engine.step())
        while self._deltas:
            delta = self._deltas.popleft()
            sink = self._sinks.get(delta.request_id)
            if sink is not None:  # else it was aborted meanwhile
                if delta.finished:
                    del self._sinks[delta.request_id]
                sink(delta)
