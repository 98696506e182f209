"""LLM: a model, its tokenizer and an engine, for programs without an event loop."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.progress import prompts_bar
from kvreuse.api.prompts import (
    Conversation,
    Prompt,
    ask_of,
    asks_of,
    parse_conversations,
    parse_params,
)
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.config import EngineConfig
from kvreuse.engine.delta_stream import DeltaStream, Mailbox
from kvreuse.engine.thread import EngineThread
from kvreuse.load import Progress, load
from kvreuse.model.weights import Repacked
from kvreuse.text.chats import Chats


class LLM:
    """A loaded model that answers prompts. vLLM's names.

    ::

        llm = LLM("smollm2-135m", kv_cache_memory="512MiB")
        outputs = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=32))
        print(outputs[0].outputs[0].text)

    ``generate``, ``chat`` and ``stream`` may be used by several threads, also while a stream is
    open; all requests share the engine's steps, which are made in a thread of its own. ``close``,
    or leaving a ``with`` block, gives back memory.
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
        loaded = load(EngineConfig(model=os.fspath(model), **options), progress)
        self.config = loaded.config
        self.shape = loaded.shape
        self.memory = loaded.memory
        self.pool = loaded.pool
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template
        self.runner = loaded.runner
        self.engine = loaded.engine
        self.cache = loaded.engine.cache
        self.chats = Chats(loaded.chat_template, loaded.tokenizer)
        self._thread = EngineThread(loaded.engine, always=False)
        # Also at the interpreter's exit, before daemon threads are stopped wherever they are.
        self._end = weakref.finalize(self, self._thread.end)

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
        asks = asks_of(prompts, sampling_params, retention, self.tokenizer.encode)
        return self._answer(asks, use_tqdm, progress)

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
        template. The next turn of a conversation has the tokens that its turns were served with.
        RequestError as for :meth:`generate`, and if the model has no chat template.
        """
        conversations = parse_conversations(messages)
        params = parse_params(sampling_params, len(conversations))
        asks = [
            self.chats.ask(
                conversation,
                template_options,
                cache_salt=cache_salt,
                params=one,
                retention=retention or DEFAULT_RETENTION,
            )
            for conversation, one in zip(conversations, params, strict=True)
        ]
        return self._answer(asks, use_tqdm, progress)

    def stream(
        self,
        prompt: Prompt | Ask,
        sampling_params: SamplingParams | None = None,
        *,
        retention: Retention | None = None,
    ) -> DeltaStream:
        """Answer one prompt token by token. The request is queued, or RequestError raised, now."""
        if isinstance(prompt, Ask):
            params = sampling_params or prompt.params
            ask = replace(prompt, params=params, retention=retention or prompt.retention)
        else:
            params = sampling_params or SamplingParams()
            ask = ask_of(prompt, params, retention, self.tokenizer.encode)
        return DeltaStream(ask, self._thread, functools.partial(self.chats.remember, ask))

    def chat_prompt(
        self, messages: Conversation, /, *, cache_salt: str | None = None, **template_options: Any
    ) -> Ask:
        """The prompt that the chat template makes of a conversation, for :meth:`stream`."""
        return self.chats.ask(messages, template_options, cache_salt=cache_salt)

    def close(self) -> None:
        """Abort what is being served and let go of the model and the pool. Twice is allowed."""
        self._end()
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
        self, asks: list[Ask], use_tqdm: bool | None, progress: Progress | None
    ) -> list[RequestOutput]:
        """Serve all ``asks``; none of them outlives this call, whatever ends it."""
        finished: dict[str, RequestOutput] = {}
        mailbox = Mailbox(self._thread)
        try:
            with prompts_bar(len(asks), use_tqdm) as count:
                request_ids = mailbox.submit(asks)
                ask_of_id = dict(zip(request_ids, asks, strict=True))
                while len(finished) < len(asks):
                    delta = mailbox.get()
                    count(delta)
                    if delta.output is not None:
                        finished[delta.request_id] = delta.output
                        self.chats.remember(ask_of_id[delta.request_id], delta.output)
                        if progress is not None:
                            progress(len(finished), len(asks))
        finally:
            mailbox.abort()
        return [finished[request_id] for request_id in request_ids]
