"""One request as the HTTP edge saw it: its times in, metrics and spans out when it ends.

Spans are made from times that were taken anyway, so a request that nobody traces pays for none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from prony_server.answers import Usage
from prony_server.openai_api import GenerationRequest, Operation
from prony_server.telemetry import PROVIDER, Exemplar, ServerMetrics

if TYPE_CHECKING:
    from prony_server.sequence import Output

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
    ) -> None:
        self.arrived = arrived
        self.first_token: float | None = None  # handed to the socket or, not streamed, collected
        self.last_token: float | None = None
        self._metrics = metrics
        self._tracer = tracer
        self._operation = operation
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._error_type = ""
        self._detokenize_first = self._detokenize_last = arrived
        self._detokenize_busy = 0.0
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

    @property
    def exemplar(self) -> Exemplar | None:
        context = self._span.get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return None
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def asked(self, request: GenerationRequest, response_id: str) -> None:
        if not self._traced:
            return
        attributes = {
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.top_p": request.top_p,
            "gen_ai.request.seed": request.seed,
            "gen_ai.request.stream": request.stream,
            "gen_ai.response.id": response_id,
        }
        self._span.set_attributes({k: v for k, v in attributes.items() if v is not None})

    def tokenized(self, start: float, end: float, tokens: int) -> None:
        self._phase("tokenize", start, end, {"gen_ai.usage.input_tokens": tokens})

    def detokenized(self, start: float, end: float) -> None:
        """One piece of text was made."""
        if not self._detokenize_busy:
            self._detokenize_first = start
        self._detokenize_last = end
        self._detokenize_busy += end - start

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
                self._phase(name, start, end, {"prony.preemptions": phases.preemptions})
        if phases.scheduled is not None and phases.last_token is not None:
            inference = phases.last_token - phases.scheduled
            latencies["gen_ai.latency.time_in_model_inference"] = inference
        if self._span.is_recording():
            self._span.set_attributes(latencies)

    def finished(self, finish_reason: str) -> None:
        """The answer is out."""
        self._finish_reason = finish_reason

    def failed(self, error_type: str) -> None:
        """There will be no (more) answer."""
        self._error_type = error_type

    def close(self) -> None:
        now = time.monotonic()
        duration = now - self.arrived
        ttft = None if self.first_token is None else self.first_token - self.arrived
        self._metrics.answered(
            self._operation,
            duration=duration,
            ttft=ttft,
            tpot=self._time_per_output_token(),
            error_type=self._error_type,
            exemplar=self.exemplar,
        )
        if not self._traced:
            return
        if self._detokenize_busy:
            self._phase(
                "detokenize",
                self._detokenize_first,
                self._detokenize_last,
                {"prony.detokenize.busy": self._detokenize_busy},
            )
        self._span.set_attribute("gen_ai.latency.e2e", duration)
        if ttft is not None:
            self._span.set_attribute("gen_ai.latency.time_to_first_token", ttft)
        if self._usage is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", self._usage.prompt_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", self._usage.completion_tokens)
        if self._finish_reason is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", [self._finish_reason])
        if self._error_type:
            self._span.set_attribute("error.type", self._error_type)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._nanoseconds(now))

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
