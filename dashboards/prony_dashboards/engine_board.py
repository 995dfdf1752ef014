"""The board Engine of one engine: its batch, its cache, its iterations, its host's share."""

from prony_dashboards import serverside
from prony_dashboards.board import Board, board, engine_variables
from prony_dashboards.engines import Concept, Engine
from prony_dashboards.panels import RED, Panel, Query, Threshold, timeseries

REQUESTS, TOKENS, TOKENS_PER_S = "suffix:requests", "suffix:tokens", "suffix:tokens/s"
STEADY = "5m"  # what a slope is taken over: shorter ones show the allocator's steps


def engine_board(engine: Engine) -> Board:
    return board(
        "engine",
        f"What {engine.title} does with its requests: batch, KV cache, iterations, scheduler.",
        [
            ("Requests", _requests(engine)),
            ("KV cache", _cache(engine)),
            ("Iterations", _iterations(engine)),
            ("The process", _process(engine)),
        ],
        engine_variables(engine),
        engine,
    )


def _requests(engine: Engine) -> list[Panel]:
    tokens = [
        Query(engine.rate(concept), legend=name) for concept, name in _TOKENS if engine.has(concept)
    ]
    reasons = []
    if engine.has("finish_reasons"):
        by = engine.sources["finish_reasons"].by
        reasons = [Query(engine.rate("finish_reasons"), legend=f"{{{{{by}}}}}")]
    return [
        timeseries(
            "Running and waiting",
            "Requests in the current batch, and those that wait for a place in it. A queue that "
            "only grows means more load than the server can take.",
            [
                Query(engine.level("running"), legend="running"),
                Query(engine.level("waiting"), legend="waiting"),
            ],
            unit=REQUESTS,
        ),
        serverside.of(
            engine,
            ["prompt_tokens", "generation_tokens"],
            timeseries,
            "Tokens per second",
            "Prompt tokens taken in and tokens generated.",
            tokens,
            unit=TOKENS_PER_S,
        ),
        serverside.of(
            engine,
            ["finish_reasons"],
            timeseries,
            "How requests ended",
            "stop: the model ended; length: the token limit; abort: the client went away; error: "
            "the engine failed.",
            reasons,
            unit="reqps",
            stacked=True,
        ),
    ]


_TOKENS: tuple[tuple[Concept, str], ...] = (
    ("prompt_tokens", "prompt"),
    ("generation_tokens", "generated"),
)


def _cache(engine: Engine) -> list[Panel]:
    usage = (
        [Query(engine.level("kv_usage", "max", "instance"), legend="{{instance}}")]
        if engine.has("kv_usage")
        else []
    )
    preempted = (
        [Query(engine.rate("preemptions"), "preemptions")] if engine.has("preemptions") else []
    )
    hits = [Query(engine.share("prefix_hits"), "hits")] if engine.has("prefix_hits") else []
    return [
        serverside.of(
            engine,
            ["kv_usage"],
            timeseries,
            "KV cache by server",
            "Share of the KV cache in use, each server by itself.",
            usage,
            unit="percentunit",
            maximum=1,
            thresholds=[Threshold(0.95, RED)],
        ),
        serverside.of(
            engine,
            ["preemptions"],
            timeseries,
            "Preemptions",
            "Times per second that a running request had to give up its KV blocks and will be "
            "computed again. Anything above 0 costs latency: fewer sequences or more blocks help.",
            preempted,
            unit="suffix:preemptions/s",
            thresholds=[Threshold(0.1, RED)],
        ),
        serverside.of(
            engine,
            ["prefix_hits"],
            timeseries,
            "Prefix cache hits",
            "Share of prompt tokens that were found in the cache instead of being computed.",
            hits,
            unit="percentunit",
            maximum=1,
        ),
    ]


def _iterations(engine: Engine) -> list[Panel]:
    stages = []
    if engine.has("scheduler_stages"):
        by = engine.sources["scheduler_stages"].by
        stages = [Query(engine.rate("scheduler_stages"), legend=f"{{{{{by}}}}}")]
    host = [Query(f"1 - {engine.share('host_share')}", "host")] if engine.has("host_share") else []
    return [
        serverside.of(
            engine,
            ["batch_size"],
            timeseries,
            "Batch size",
            "Requests in one iteration: the mean, and what 90 % of iterations kept within.",
            _mean_and(engine, "batch_size", 0.9),
            unit=REQUESTS,
        ),
        serverside.of(
            engine,
            ["iteration_time"],
            timeseries,
            "Iteration time",
            "Length of one iteration. Every running request waits for each of them.",
            serverside.percentiles(engine, "iteration_time", (0.5, 0.99)),
            unit="s",
        ),
        serverside.of(
            engine,
            ["iteration_tokens"],
            timeseries,
            "Tokens in an iteration",
            "Tokens that one iteration worked on, prefill and decode together.",
            _mean_and(engine, "iteration_tokens", 0.9),
            unit=TOKENS,
        ),
        serverside.of(
            engine,
            ["scheduler_stages"],
            timeseries,
            "Scheduler stages",
            "Seconds a second that the scheduler's loop spent in each stage; they sum to 1.",
            stages,
            unit="s",
            width=12,
            stacked=True,
        ),
        serverside.of(
            engine,
            ["host_share"],
            timeseries,
            "Host share",
            "Part of the busy loop in which no forward pass ran: above 30 % the host, not the "
            "device, sets the pace.",
            host,
            unit="percentunit",
            width=12,
            maximum=1,
            thresholds=[Threshold(0.3, RED)],
        ),
    ]


def _process(engine: Engine) -> list[Panel]:
    memory, slope, cpu = [], [], []
    if engine.has("memory"):
        source = engine.sources["memory"]
        selected = f"{source.metric}{{{engine.labels(source)}}}"
        memory = [Query(selected, legend="{{instance}}")]
        slope = [Query(f"deriv({selected}[{STEADY}])", legend="{{instance}}")]
    if engine.has("cpu"):
        cpu = [Query(engine.rate("cpu", by="instance"), legend="{{instance}}")]
    return [
        serverside.of(
            engine, ["memory"], timeseries, "Memory",
            "Memory of the server's process in RAM.",
            memory, unit="bytes",
        ),
        serverside.of(
            engine, ["memory"], timeseries, "Slope of memory",
            f"Growth of that memory over {STEADY}. At steady load it should hover around 0; a "
            "line that stays above is a leak. Device memory's slope is on GPU and host.",
            slope, unit="Bps", minimum=None, thresholds=[Threshold(1e6, RED)],
        ),
        serverside.of(
            engine, ["cpu"], timeseries, "Processor",
            "Cores that the server's process keeps busy.",
            cpu, unit="suffix:cores",
        ),
    ]  # fmt: skip


def _mean_and(engine: Engine, concept: Concept, q: float) -> list[Query]:
    if not engine.has(concept):
        return []
    return [
        Query(engine.mean(concept), legend="mean"),
        Query(engine.quantile(q, concept), legend=f"p{100 * q:g}"),
    ]
