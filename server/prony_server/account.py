"""One request as the HTTP edge saw it: its times in, metrics, spans and a log line out at its end.

Spans are made from times that were taken anyway, so a request that nobody traces pays for none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from prony_server.answers import Usage
from prony_server.openai_api import GenerationRequest, Operation
from prony_server.telemetry import PROVIDER, Exemplar, ServerMetrics

if TYPE_CHECKING:
    from prony_server.requestlog import Fact, RequestLog
    from prony_server.sequence import Output, Phases

_PROPAGATOR = TraceContextTextMapPropagator()


class Account:
    """Opened when a request's headers have been read; every time is time.monotonic().

    The phases tokenize, queue, prefill and decode follow one another. The span detokenize lies
    within decode, since text is made as tokens come: it reaches from the first token's text to the
    last one's, and its attribute `prony.detokenize.busy` holds the seconds really spent.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        tracer: Tracer,
        operation: Operation,
        model: str,
        headers: Mapping[str, str],
        address: tuple[str, int],
        arrived: float,
        log: RequestLog | None = None,
    ) -> None:
        self.arrived = arrived
        self.first_token: float | None = None  # handed to the socket or, not streamed, collected
        self.last_token: float | None = None
        self._metrics = metrics
        self._tracer = tracer
        self._operation = operation
        self._usage: Usage | None = None
        self._finish_reasons: tuple[str, ...] = ()
        self._error_type = ""
        self._tokenize: float | None = None
        self._tokenized: float | None = None  # when it was
        self._detokenize_first = self._detokenize_last = arrived
        self._detokenize_busy = 0.0
        self._write_wait: float | None = None
        self._log = log
        self._response_id: str | None = None
        self._streamed = False
        self._in_engine = 0  # sequences: one, or as many as answers were asked for
        self._phases: list[Phases] = []  # of those that left it
        self._closed: float | None = None
        # Spans want wall time: taken once, so that no clock step can bend a request.
        self._to_unix = time.time() - time.monotonic()
        self._span = tracer.start_span(
            f"{operation} {model}",
            context=_PROPAGATOR.extract({k.lower(): v for k, v in headers.items()}),
            kind=SpanKind.SERVER,
            start_time=self._nanoseconds(arrived),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": model,
                "gen_ai.response.model": model,
                "server.address": address[0],
                "server.port": address[1],
            },
        )
        self._traced = self._span.is_recording()

    @cached_property
    def exemplar(self) -> Exemplar | None:
        context = self._span.get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return None
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def asked(self, request: GenerationRequest, response_id: str) -> None:
        self._response_id = response_id
        self._streamed = request.stream
        if not self._traced:
            return
        attributes = {
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.top_p": request.top_p,
            "gen_ai.request.seed": request.seed,
            "gen_ai.request.top_k": request.top_k or None,
            "gen_ai.request.presence_penalty": request.presence_penalty or None,
            "gen_ai.request.frequency_penalty": request.frequency_penalty or None,
            "gen_ai.request.stop_sequences": request.stop or None,
            "gen_ai.request.choice.count": None if request.n == 1 else request.n,
            "gen_ai.request.stream": request.stream,
            "gen_ai.response.id": response_id,
        }
        self._span.set_attributes({k: v for k, v in attributes.items() if v is not None})

    def tokenized(self, start: float, end: float, tokens: int) -> None:
        if self._tokenize is None:
            self._phase("receive", self.arrived, start, {})
        self._tokenize, self._tokenized = end - start, end
        self._phase("tokenize", start, end, {"gen_ai.usage.input_tokens": tokens})

    def submitted(self) -> None:
        """The engine took a sequence of it."""
        self._in_engine += 1

    def detokenized(self, start: float, end: float) -> None:
        """One piece of text was made."""
        if not self._detokenize_busy:
            self._detokenize_first = start
        self._detokenize_last = end
        self._detokenize_busy += end - start

    def wrote(self, start: float, end: float) -> None:
        """Bytes of a stream went to the socket, which took so long to take them."""
        self._write_wait = (self._write_wait or 0.0) + (end - start)

    def handed_over(self, now: float, usage: Usage) -> None:
        """Text went to the socket or, not streamed, into the answer; `usage` counts so far."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self._usage = usage

    def left_engine(self, output: Output) -> None:
        """The last output came. May be told after `close`, when the client has gone away."""
        assert output.finish_reason is not None
        phases = output.phases
        self._metrics.left_engine(output.finish_reason, phases, self.exemplar)
        self._in_engine -= 1
        self._phases.append(phases)
        if self._closed is not None:
            self._write_line()
        if not self._traced:
            return
        latencies = {}
        for name, latency, start, end in (
            ("queue", "time_in_queue", phases.arrived, phases.scheduled),
            ("prefill", "time_in_model_prefill", phases.scheduled, phases.first_token),
            ("decode", "time_in_model_decode", phases.first_token, phases.last_token),
        ):
            if start is not None and end is not None:
                latencies[f"gen_ai.latency.{latency}"] = end - start
                if name == "queue" and self._tokenized is not None:
                    start = self._tokenized  # the way into the engine is waiting too
                self._phase(name, start, end, {"prony.preemptions": phases.preemptions})
        if phases.scheduled is not None and phases.last_token is not None:
            inference = phases.last_token - phases.scheduled
            latencies["gen_ai.latency.time_in_model_inference"] = inference
        if self._span.is_recording():
            self._span.set_attributes(latencies)

    def finished(self, finish_reasons: Sequence[str]) -> None:
        """The answer is out: of each choice why it ended."""
        self._finish_reasons = tuple(finish_reasons)

    def failed(self, error_type: str) -> None:
        """There will be no (more) answer."""
        self._error_type = error_type

    def close(self) -> None:
        self._closed = now = time.monotonic()
        duration = now - self.arrived
        ttft = None if self.first_token is None else self.first_token - self.arrived
        self._metrics.answered(
            self._operation,
            duration=duration,
            ttft=ttft,
            tpot=self._time_per_output_token(),
            error_type=self._error_type,
            exemplar=self.exemplar,
            tokenize=self._tokenize,
            detokenize=self._detokenize_busy or None,
            write_wait=self._write_wait,
            tokens=None
            if self._usage is None
            else (self._usage.prompt_tokens, self._usage.completion_tokens),
        )
        self._write_line()
        if not self._traced:
            return
        if self._detokenize_busy:
            self._phase(
                "detokenize",
                self._detokenize_first,
                self._detokenize_last,
                {"prony.detokenize.busy": self._detokenize_busy},
            )
        last = max((p.last_token for p in self._phases if p.last_token is not None), default=now)
        if last < now:
            self._phase("deliver", last, now, {})
        self._span.set_attribute("gen_ai.latency.e2e", duration)
        if ttft is not None:
            self._span.set_attribute("gen_ai.latency.time_to_first_token", ttft)
        if self._usage is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", self._usage.prompt_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", self._usage.completion_tokens)
        if self._finish_reasons:
            self._span.set_attribute("gen_ai.response.finish_reasons", self._finish_reasons)
        if self._error_type:
            self._span.set_attribute("error.type", self._error_type)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._nanoseconds(now))

    def _write_line(self) -> None:
        """Once both the answer and all its sequences have ended, in whatever order."""
        if self._log is None or self._closed is None or self._in_engine:
            return
        context = self._span.get_span_context()
        usage = self._usage
        self._log.add(
            self._closed + self._to_unix,
            {
                "id": self._response_id,
                "trace_id": f"{context.trace_id:032x}" if context.is_valid else None,
                "operation": self._operation,
                "stream": self._streamed,
                "status": self._status(),
                "outcome": self._error_type or "ok",
                # One where all choices ended alike.
                "finish_reason": ",".join(dict.fromkeys(self._finish_reasons)) or None,
                "prompt_tokens": None if usage is None else usage.prompt_tokens,
                "cached_tokens": None if usage is None else usage.cached_tokens,
                "output_tokens": None if usage is None else usage.completion_tokens,
                "preemptions": sum(phases.preemptions for phases in self._phases),
                "duration": _rounded(self._closed - self.arrived),
                "ttft": _rounded(_between(self.arrived, self.first_token)),
                "tokenize": _rounded(self._tokenize),
                **self._engine_times(),
                "detokenize": _rounded(self._detokenize_busy or None),
                "write_wait": _rounded(self._write_wait),
            },
        )

    def _engine_times(self) -> dict[str, Fact]:
        """Queue, prefill and decode of its sequences together: of the first to the last of each."""
        if not self._phases:
            return {"queue": None, "prefill": None, "decode": None}
        arrived = min(phases.arrived for phases in self._phases)
        scheduled = _least(phases.scheduled for phases in self._phases)
        first = _least(phases.first_token for phases in self._phases)
        last = max((p.last_token for p in self._phases if p.last_token is not None), default=None)
        return {
            "queue": _rounded(_between(arrived, scheduled)),
            "prefill": _rounded(_between(scheduled, first)),
            "decode": _rounded(_between(first, last)),
        }

    def _status(self) -> int | None:
        """The HTTP status that was sent; None where the client was gone before there was one."""
        if self._streamed and self._phases:
            return 200  # the headers leave as soon as the engine has the request
        if not self._error_type:
            return 200
        return int(self._error_type) if self._error_type.isdigit() else None

    def _time_per_output_token(self) -> float | None:
        if self.first_token is None or self.last_token is None or self._usage is None:
            return None
        if self.last_token <= self.first_token or self._usage.completion_tokens < 2:
            return None  # one moment holds no interval
        return (self.last_token - self.first_token) / (self._usage.completion_tokens - 1)

    def _phase(self, name: str, start: float, end: float, attributes: dict[str, float]) -> None:
        if not self._traced:
            return
        parent = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(
            name, context=parent, start_time=self._nanoseconds(start), attributes=attributes
        )
        span.end(self._nanoseconds(end))

    def _nanoseconds(self, at: float) -> int:
        return int((at + self._to_unix) * 1e9)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _least(times: Iterable[float | None]) -> float | None:
    return min((at for at in times if at is not None), default=None)


def _rounded(seconds: float | None) -> float | None:
    """To the microsecond: a line is read by people too."""
    return None if seconds is None else round(seconds, 6)
