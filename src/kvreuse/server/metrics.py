"""``/metrics``: vLLM's names under our prefix, in a registry of this server's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvreuse.api.miss import Reason
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.llm import LLM

PREFIX = "kvreuse:"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Histograms and counters of ended requests; other metrics are read from the engine."""

    def __init__(self, llm: LLM, model: str) -> None:
        """``model`` is the name that clients use."""
        self.registry = CollectorRegistry()
        self._last_token: dict[tuple[str, int], float] = {}
        self._ended = Counter(
            f"{PREFIX}request_success",
            "Answers that have ended.",
            ["finished_reason"],
            registry=self.registry,
        )
        self._first_token = self._histogram("time_to_first_token_seconds", _LONG)
        self._between_tokens = self._histogram("inter_token_latency_seconds", _SHORT)
        self._request = self._histogram("e2e_request_latency_seconds", _LONG)
        self._queue = self._histogram("request_queue_time_seconds", _LONG)
        self.registry.register(EngineCollector(llm, model))

    def on_step(self, deltas: Sequence[Delta]) -> None:
        """Take the deltas of a step; called by the engine's thread."""
        now, last = time.perf_counter(), self._last_token
        for delta in deltas:
            key = delta.request_id, delta.index
            before = last.get(key)
            if before is not None:
                self._between_tokens.observe(now - before)
            last[key] = now
            if delta.output is not None:
                for answer in delta.output.outputs:
                    last.pop((delta.request_id, answer.index), None)

    def on_end(self, output: RequestOutput) -> None:
        """Take a request that has ended or was aborted; called on the event loop."""
        took = output.metrics
        for answer in output.outputs:
            self._ended.labels(answer.finish_reason).inc()
            self._last_token.pop((output.request_id, answer.index), None)
        self._request.observe(took.finished_time - took.arrival_time)
        if took.time_to_first_token is not None:
            self._first_token.observe(took.time_to_first_token)
        if took.first_scheduled_time is not None:
            self._queue.observe(took.first_scheduled_time - took.arrival_time)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        words = name.removesuffix("_seconds").replace("_", " ").capitalize()
        return Histogram(
            PREFIX + name, f"{words}, in seconds.", buckets=buckets, registry=self.registry
        )


class EngineCollector(Collector):
    """The engine's own counters. Its integers are read without waiting for its thread."""

    def __init__(self, llm: LLM, model: str) -> None:
        self._llm = llm
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """All families."""
        engine, pool = self._llm.engine, self._llm.pool
        counters = engine.counters
        used = pool.num_pages - engine.cache.num_available
        for name, value, words in (
            ("num_requests_running", engine.num_running, "Answers that hold pages."),
            ("num_requests_waiting", engine.num_waiting, "Answers that wait for admission."),
            ("kv_cache_usage_perc", used / pool.num_pages, "Share of the pages in use; 1 is all."),
            ("pinned_pages", engine.cache.num_pinned, "Pages that are pinned."),
        ):
            yield GaugeMetricFamily(PREFIX + name, words, value)
        for name, value, words in (
            ("prefix_cache_queries", counters.prompt_tokens, "Prompt tokens looked up."),
            ("prefix_cache_hits", counters.cached_tokens, "Prompt tokens found."),
            ("num_preemptions", counters.preemptions, "Answers that lost their pages."),
            ("prompt_tokens", counters.prompt_tokens, "Prompt tokens of admitted requests."),
            ("generation_tokens", counters.generated_tokens, "Tokens generated."),
            ("computed_tokens", counters.computed_tokens, "Rows that went through the model."),
            ("steps", counters.steps, "Batches computed."),
            ("page_bytes_read", counters.page_bytes_read, "Bytes of pages that attention read."),
            ("evicted_pages", engine.cache.num_evicted, "Pages whose memory was needed."),
        ):
            yield CounterMetricFamily(PREFIX + name, words, value)
        yield self._misses("prefix_cache_misses", "Prompts not found in full.", False)
        yield self._misses("prefix_cache_missed_tokens", "Tokens of them not found.", True)
        yield self._config()

    def _misses(self, name: str, words: str, tokens: bool) -> Metric:
        counters = self._llm.engine.counters
        tally = counters.lost_tokens if tokens else counters.misses
        family = CounterMetricFamily(PREFIX + name, words, labels=["reason"])
        for reason in Reason:
            family.add_metric([reason.value], tally[reason])
        return family

    def _config(self) -> Metric:
        pool, engine = self._llm.pool, self._llm.engine
        labels = {
            "model_name": self._model,
            "block_size": str(pool.layout.page_size),
            "num_gpu_blocks": str(pool.num_pages),
            "page_bytes": str(pool.layout.page_bytes),
            "cache_dtype": pool.layout.codec.name,
            "enable_prefix_caching": str(engine.cache.enabled),
            "max_model_len": str(engine.max_model_len),
        }
        info = GaugeMetricFamily(
            PREFIX + "cache_config_info", "How the cache is set up.", labels=list(labels)
        )
        info.add_metric(list(labels.values()), 1)
        return info
