"""Answer: turns a request's logits into tokens, text and log-probabilities, and decides its end."""

from __future__ import annotations

import dataclasses

from kvreuse.api.outputs import FinishReason, Logprob
from kvreuse.engine.answer.detokenize import TextStream
from kvreuse.engine.answer.guide.guide import Guide
from kvreuse.engine.answer.logprobs import top_logprobs
from kvreuse.engine.answer.sampler import Sampler, make_generator
from kvreuse.engine.request import Request
from kvreuse.ops.batch import Float32Array
from kvreuse.text.tokenizer import IncrementalDecoder, Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Answering:
    """What all answers of an engine share.

    Without a tokenizer there is no text, no end of sequence and no stop text. ``seed`` is for
    requests without a seed.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    seed: int = 0


class Answer:
    """The answer to one admitted request; each ``advance`` adds one token.

    It ends with the first of these: a token of ``stop_token_ids`` or an end of sequence, a stop
    text, the end of its structured output, ``max_tokens``. If the structured output cannot be
    continued, the answer is aborted and ``stop_reason`` says why.
    """

    __slots__ = (
        "_eos_ids",
        "_guide",
        "_sampler",
        "_stop_ids",
        "_text",
        "_tokenizer",
        "finish_reason",
        "request",
        "stop_reason",
    )

    def __init__(self, request: Request, common: Answering, guide: Guide | None = None) -> None:
        """``guide`` is at the start of the answer's structured output; None: any text."""
        params, tokenizer = request.params, common.tokenizer
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._tokenizer = tokenizer
        self._guide = guide
        eos = tokenizer.eos_token_ids if tokenizer and not params.ignore_eos else ()
        self._eos_ids = frozenset(eos)
        self._stop_ids = frozenset(params.stop_token_ids or ())
        generator = None
        if not params.greedy:
            generator = make_generator(request.seed, common.seed, request.request_id)
        self._sampler = Sampler(
            params,
            common.vocab_size,
            request.prompt_ids,
            generator,
            stop_ids=tuple(self._eos_ids | self._stop_ids),
            guide=guide,
        )
        self._text: TextStream | None = None
        if tokenizer is not None:
            decoder = IncrementalDecoder(
                tokenizer, skip_special_tokens=params.skip_special_tokens, continuation=True
            )
            self._text = TextStream(
                decoder,
                params.stop_texts,
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    @property
    def text(self) -> str:
        """The text that is final so far."""
        return self._text.text if self._text is not None else ""

    def advance(self, logits: Float32Array) -> tuple[int, str]:
        """Sample a token from float32[vocab] ``logits`` and append it; returns it and the new text.

        Sets ``finish_reason`` if the answer ends with this token.
        """
        token = self._sampler.sample(logits)
        self.request.append(token)
        if self.request.logprobs is not None:
            self._report(logits, token, self.request.logprobs)
        text = self._take(token)
        return token, (text + self.finish() if self.finish_reason is not None else text)

    def finish(self) -> str:
        """End the answer; returns the text that was held back."""
        return self._text.finish() if self._text is not None else ""

    def _take(self, token: int) -> str:
        """Check whether ``token`` ends the answer; returns the text that became final."""
        stream = self._text
        if token in self._stop_ids or token in self._eos_ids:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self._stop_ids else None
            wanted = self.request.params.include_stop_str_in_output
            return stream.push(token) if wanted and stream is not None else ""
        text = stream.push(token) if stream is not None else ""
        if stream is not None and stream.stopped_by is not None:
            self.finish_reason = "stop"
            self.stop_reason = stream.stopped_by
        elif self._guide is not None and self._guide.failure is not None:
            self.finish_reason, self.stop_reason = "abort", self._guide.failure
        elif self._guide is not None and self._guide.complete:
            self.finish_reason = "stop"
        elif self.request.num_generated_tokens >= self.request.max_tokens:
            self.finish_reason = "length"
        return text

    def _report(self, logits: Float32Array, token: int, reported: list[dict[int, Logprob]]) -> None:
        """Append the log-probabilities of this step to ``reported``."""
        found = top_logprobs(logits, token, self.request.params.logprobs or 0)
        self.request.cumulative_logprob += found[0].logprob
        text_of = self._tokenizer.token_text if self._tokenizer else lambda token_id: ""
        reported.append(
            {i.token_id: Logprob(i.logprob, i.rank, text_of(i.token_id)) for i in found}
        )
