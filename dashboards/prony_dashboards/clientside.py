"""What the load generator says of a server, as expressions and panels that several boards use."""

from collections.abc import Sequence

from prony_dashboards import promql
from prony_dashboards.board import RUN
from prony_dashboards.findings import LOAD, needing
from prony_dashboards.panels import AMBER, RED, Panel, Query, Threshold, stat, timeseries
from prony_loadgen import telemetry as load

TOP = str(float(load.SECONDS[-1]))  # the last finite bucket


def attempts(by: str = "", window: str = promql.WINDOW) -> str:
    """Finished requests a second, those left out that the end of the run cut."""
    return promql.rate(load.REQUESTS, f'{RUN}, outcome!="incomplete"', by, window)


def error_share(by: str = "", window: str = promql.WINDOW) -> str:
    """Failed requests of all that finished; 0 only where some finished."""
    bad = promql.rate(load.REQUESTS, f'{RUN}, outcome!~"ok|incomplete"', by, window)
    return promql.share(bad, attempts(by, window))


def within(histogram: str, limit: str) -> str:
    """Requests a second that kept a limit which is a bucket's bound."""
    return promql.rate(f"{histogram}_bucket", f'{RUN}, le="{limit}"')


def percentiles(histogram: str, qs: Sequence[float] = (0.5, 0.9, 0.99)) -> list[Query]:
    return [Query(promql.quantile(q, histogram, RUN), legend=f"p{100 * q:g}") for q in qs]


def ttft_stat(width: int = 4) -> Panel:
    return needing(
        stat(
            "TTFT p99, at the client",
            "Time to first token that 99 % of successful requests kept, from the moment the "
            "schedule intended them. Read from histogram buckets; the exact figure is in the "
            "run's report. Amber over 500 ms, red over 2 s.",
            [Query(promql.quantile(0.99, load.TIME_TO_FIRST_TOKEN, RUN))],
            unit="s",
            width=width,
            thresholds=[Threshold(0.5, AMBER), Threshold(2, RED)],
        ),
        LOAD,
    )


def tpot_stat(width: int = 4) -> Panel:
    return needing(
        stat(
            "TPOT p99, at the client",
            "Time per output token after the first, 99th percentile over successful requests. "
            "Amber over 50 ms, red over 200 ms.",
            [Query(promql.quantile(0.99, load.TIME_PER_OUTPUT_TOKEN, RUN))],
            unit="s",
            width=width,
            thresholds=[Threshold(0.05, AMBER), Threshold(0.2, RED)],
        ),
        LOAD,
    )


def errors_stat(width: int = 4) -> Panel:
    return needing(
        stat(
            "Errors, at the client",
            "Failed requests of all that finished. 0 % is shown only while requests finish; with "
            "no traffic there is no data.",
            [Query(error_share())],
            unit="percentunit",
            width=width,
            thresholds=[Threshold(0.001, AMBER), Threshold(0.01, RED)],
        ),
        LOAD,
    )


def goodput_stat(width: int = 4) -> Panel:
    return needing(
        stat(
            "Within the TTFT limit",
            "Requests whose first token came within the limit chosen above, of all that finished; "
            "a failed request is not within it. Goodput by every objective together is in the "
            "run's report: separate histograms cannot tell which requests met all.",
            [Query(promql.ratio(within(load.TIME_TO_FIRST_TOKEN, "$slo_ttft"), attempts()))],
            unit="percentunit",
            width=width,
            thresholds=[],
        ),
        LOAD,
    )


def ttft(width: int = 8) -> Panel:
    return needing(
        timeseries(
            "TTFT at the client",
            "Time to first token of successful requests, from the intended moment: waiting in a "
            "queue counts, wherever the queue is. Dashed: the limit chosen above.",
            percentiles(load.TIME_TO_FIRST_TOKEN),
            unit="s",
            width=width,
            limit="$slo_ttft",
        ),
        LOAD,
    )


def tpot(width: int = 8) -> Panel:
    return needing(
        timeseries(
            "TPOT at the client",
            "Time per output token after the first, one sample a request. Dashed: the limit "
            "chosen above.",
            percentiles(load.TIME_PER_OUTPUT_TOKEN),
            unit="s",
            width=width,
            limit="$slo_tpot",
        ),
        LOAD,
    )


def itl(width: int = 8) -> Panel:
    return needing(
        timeseries(
            "Inter-token latency at the client",
            "Gaps between tokens as users see them stream, each token one observation.",
            percentiles(load.INTER_TOKEN_LATENCY),
            unit="s",
            width=width,
        ),
        LOAD,
    )


def beyond(width: int = 8) -> Panel:
    last = f"the histogram's last bound ({TOP} s)"
    over = (
        f"{promql.rate(load.TIME_TO_FIRST_TOKEN + '_count', RUN)} - "
        f"{within(load.TIME_TO_FIRST_TOKEN, TOP)}"
    )
    return needing(
        timeseries(
            "First tokens later than the histogram sees",
            f"Requests a second whose first token took longer than {last}. Above 0 a percentile "
            "drawn at that bound means: at least so long.",
            [Query(over, legend="beyond")],
            unit="reqps",
            width=width,
            thresholds=[Threshold(1e-9, RED)],
        ),
        LOAD,
    )
