"""The load generator's metrics: finished records in, Prometheus series out.

Names and meanings are in docs/metrics.md. Imports neither Locust nor torch.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from prony_loadgen.record import RequestRecord

LABEL = "run_id"

# The dashboards read these names.
TIME_TO_FIRST_TOKEN = "prony_loadgen_time_to_first_token_seconds"
TIME_PER_OUTPUT_TOKEN = "prony_loadgen_time_per_output_token_seconds"
REQUEST_DURATION = "prony_loadgen_request_duration_seconds"
INTER_TOKEN_LATENCY = "prony_loadgen_inter_token_latency_seconds"
SEND_LAG = "prony_loadgen_send_lag_seconds"
REQUESTS = "prony_loadgen_requests_total"
OUTPUT_TOKENS = "prony_loadgen_output_tokens_total"
OFFERED = "prony_loadgen_offered_total"
REQUESTS_IN_FLIGHT = "prony_loadgen_requests_in_flight"

# Log-spaced, three a decade; the exact percentiles are in the run folder.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
LAG_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)


class LoadMetrics:
    """The series of one run, all labelled with its `run_id`."""

    def __init__(self, registry: CollectorRegistry, run_id: str) -> None:
        self.run_id = run_id

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, help, [LABEL], registry=registry, buckets=buckets)
            return made.labels(run_id)

        self._ttft = histogram(
            TIME_TO_FIRST_TOKEN,
            "First generated token, from the moment the schedule intended the request",
            SECONDS,
        )
        self._tpot = histogram(
            TIME_PER_OUTPUT_TOKEN, "Time per output token after the first", TOKEN_SECONDS
        )
        self._e2e = histogram(
            REQUEST_DURATION, "Last generated token, from the intended moment", SECONDS
        )
        self._itl = histogram(
            INTER_TOKEN_LATENCY,
            "Gaps between tokens: a chunk of k tokens after a gap g is k samples of g/k",
            TOKEN_SECONDS,
        )
        self._lag = histogram(SEND_LAG, "How late the load generator itself sent", LAG_SECONDS)
        self._requests = Counter(
            REQUESTS,
            "Finished requests",
            [LABEL, "outcome", "class"],
            registry=registry,
        )
        self._tokens = Counter(OUTPUT_TOKENS, "Tokens received", [LABEL], registry=registry).labels(
            run_id
        )
        self._offered = Counter(
            OFFERED, "Requests that the schedule or the users asked for", [LABEL], registry=registry
        ).labels(run_id)
        self._in_flight = Gauge(
            REQUESTS_IN_FLIGHT, "Requests not yet answered", [LABEL], registry=registry
        ).labels(run_id)

    def observe(self, record: RequestRecord) -> None:
        """Counts a finished request: some 20 µs, and 2 µs a token."""
        self._requests.labels(self.run_id, record.outcome, record.cls).inc()
        if record.output_tokens is not None:
            self._tokens.inc(record.output_tokens)
        if record.send_lag is not None:
            self._lag.observe(record.send_lag)
        if not record.ok:
            return
        for histogram, seconds in (
            (self._ttft, record.ttft),
            (self._tpot, record.tpot),
            (self._e2e, record.e2e),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        for seconds, weight in record.itl:
            for _ in range(round(weight)):
                self._itl.observe(seconds)

    def offered(self) -> None:
        """One more request was handed to the client."""
        self._offered.inc()

    def in_flight(self, requests: int) -> None:
        self._in_flight.set(requests)
