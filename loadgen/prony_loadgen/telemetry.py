"""The load generator's metrics: a run's timeline in, Prometheus series out.

Names and meanings are in docs/metrics.md. Imports neither Locust nor torch.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from prony_loadgen.live import Timeline

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


class LoadMetrics(Collector):
    """The series of one run, all labelled with its `run_id`.

    A histogram's buckets are read off a sketch, so their edges are off by up to 2 %.
    """

    def __init__(self, registry: CollectorRegistry, run_id: str) -> None:
        self.run_id = run_id
        self._timeline = Timeline()
        registry.register(self)

    def watch(self, timeline: Timeline, run_id: str) -> None:
        """From now on the series are those of this run."""
        timeline.gaps = True
        self._timeline, self.run_id = timeline, run_id

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        seen, run = self._timeline.total(), [self.run_id]
        for name, help, metric, edges in HISTOGRAMS:
            sketch = seen.sketches[metric]
            histogram = HistogramMetricFamily(name, help, labels=[LABEL])
            counts = zip(edges, sketch.up_to(edges), strict=True)
            buckets = [(repr(float(edge)), float(count)) for edge, count in counts]
            histogram.add_metric(run, [*buckets, ("+Inf", float(sketch.count))], sketch.total)
            yield histogram
        requests = CounterMetricFamily(
            REQUESTS, "Finished requests", labels=[LABEL, "outcome", "class"]
        )
        for (outcome, cls), number in sorted(seen.outcomes.items()):
            requests.add_metric([self.run_id, outcome, cls], number)
        yield requests
        tokens = CounterMetricFamily(OUTPUT_TOKENS, "Tokens received", labels=[LABEL])
        tokens.add_metric(run, seen.tokens)
        yield tokens
        offered = CounterMetricFamily(
            OFFERED, "Requests that the schedule or the users asked for", labels=[LABEL]
        )
        offered.add_metric(run, seen.offered)
        yield offered
        in_flight = GaugeMetricFamily(
            REQUESTS_IN_FLIGHT, "Requests not yet answered", labels=[LABEL]
        )
        in_flight.add_metric(run, self._timeline.in_flight)
        yield in_flight


HISTOGRAMS = (
    (
        TIME_TO_FIRST_TOKEN,
        "First generated token, from the moment the schedule intended the request",
        "ttft",
        SECONDS,
    ),
    (TIME_PER_OUTPUT_TOKEN, "Time per output token after the first", "tpot", TOKEN_SECONDS),
    (REQUEST_DURATION, "Last generated token, from the intended moment", "e2e", SECONDS),
    (
        INTER_TOKEN_LATENCY,
        "Gaps between tokens: a chunk of k tokens after a gap g is k samples of g/k",
        "itl",
        TOKEN_SECONDS,
    ),
    (SEND_LAG, "How late the load generator itself sent", "send_lag", LAG_SECONDS),
)
