"""The board Engine of one engine: its batch, cache, iterations, host's share, front end."""

from prony_dashboards import serverside
from prony_dashboards.board import Board, board, engine_variables
from prony_dashboards.engines import Concept, Engine
from prony_dashboards.panels import RED, Panel, Query, Threshold, timeseries, words

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
            ("Front end", _front_end(engine)),
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
                *_line(engine, "slots", "places"),
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
        serverside.of(
            engine,
            ["prompt_length"],
            timeseries,
            "Length of prompts",
            "Tokens of a prompt: the mean, and what 90 % of requests kept within. Long ones make "
            "first tokens late.",
            _mean_and(engine, "prompt_length", 0.9),
            unit=TOKENS,
            width=12,
        ),
        serverside.of(
            engine,
            ["output_length"],
            timeseries,
            "Length of outputs",
            "Tokens generated for a request: the mean, and what 90 % of requests kept within.",
            _mean_and(engine, "output_length", 0.9),
            unit=TOKENS,
            width=12,
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
    if engine.has("kv_cached"):
        usage.append(Query(engine.share("kv_cached"), legend="free, but kept for prefixes"))
    preempted = _rate(engine, "preemptions", "preemptions")
    preempted += _rate(engine, "out_of_memory", "out of memory")
    hits = [Query(engine.share("prefix_hits"), "hits")] if engine.has("prefix_hits") else []
    return [
        serverside.of(
            engine,
            ["kv_usage"],
            timeseries,
            "KV cache by server",
            "Share of the KV cache in use, each server by itself. What finished requests left, "
            "kept for others with the same prefix, is not in use: it is given up when needed.",
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
            "computed again, and that an iteration ran out of memory. Anything above 0 costs "
            "latency: fewer sequences or more blocks help.",
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
        stages = [Query(engine.parts("scheduler_stages"), legend=f"{{{{{by}}}}}")]
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
            "Length of one iteration. Every running request waits for each of them: one with a "
            "prompt in it (prefill, mixed) holds up those that decode.",
            serverside.percentiles(engine, "iteration_time", (0.5, 0.99)),
            unit="s",
        ),
        serverside.of(
            engine,
            ["iteration_tokens"],
            timeseries,
            "Tokens in an iteration",
            "Tokens that one iteration worked on, prefill and decode together.",
            [
                *_mean_and(engine, "iteration_tokens", 0.9),
                *_line(engine, "token_budget", "budget"),
            ],
            unit=TOKENS,
        ),
        serverside.of(
            engine,
            ["scheduler_stages"],
            timeseries,
            "Scheduler stages",
            "What part of its time the scheduler's loop spent in each stage; they sum to 1.",
            stages,
            unit="percentunit",
            width=12,
            stacked=True,
            maximum=1,
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


def _front_end(engine: Engine) -> list[Panel]:
    """What lies between engine and client; one sentence where an engine tells none of it."""
    times: tuple[tuple[Concept, str], ...] = (
        ("tokenize_time", "tokenizing"), ("detokenize_time", "making text"),
        ("write_wait", "waiting for the reader"),
    )  # fmt: skip
    threads: tuple[tuple[Concept, str], ...] = (
        ("engine_cpu", "engine"), ("loop_cpu", "event loop"),
    )  # fmt: skip
    every: list[Concept] = ["loop_lag", "rejected", *(c for c, _ in (*times, *threads))]
    if not any(engine.has(concept) for concept in every):
        return [words("Front end", engine.says(*every), width=24, height=4)]
    return [
        serverside.of(
            engine,
            [concept for concept, _ in times],
            timeseries,
            "Outside the engine",
            "Mean seconds of a request that its front end spent on it.",
            [Query(engine.mean(c), legend=legend) for c, legend in times if engine.has(c)],
            unit="s",
        ),
        serverside.of(
            engine,
            ["loop_lag"],
            timeseries,
            "Event loop lag",
            "How late the event loop comes to what is due. Every token of every stream waits so "
            "long: above 20 ms something holds the loop up.",
            serverside.percentiles(engine, "loop_lag", (0.5, 0.99)),
            unit="s",
            thresholds=[Threshold(0.02, RED)],
        ),
        serverside.of(
            engine,
            [concept for concept, _ in threads],
            timeseries,
            "Threads",
            "Cores that each thread keeps busy. One near 1 is at its limit, however idle the "
            "machine.",
            [Query(engine.rate(c), legend=legend) for c, legend in threads if engine.has(c)],
            unit="suffix:cores",
            thresholds=[Threshold(0.9, RED)],
        ),
        serverside.of(
            engine,
            ["rejected"],
            timeseries,
            "Refused",
            "Requests a second that were refused because too many waited already.",
            _rate(engine, "rejected", "refused"),
            unit="reqps",
            width=24,
            height=6,
            thresholds=[Threshold(0.1, RED)],
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


def _line(engine: Engine, concept: Concept, legend: str) -> list[Query]:
    """A limit, for the eye to compare with."""
    return [Query(engine.level(concept), legend=legend)] if engine.has(concept) else []


def _rate(engine: Engine, concept: Concept, legend: str) -> list[Query]:
    return [Query(engine.rate(concept), legend=legend)] if engine.has(concept) else []


def _mean_and(engine: Engine, concept: Concept, q: float) -> list[Query]:
    if not engine.has(concept):
        return []
    return [
        Query(engine.mean(concept), legend="mean"),
        Query(engine.quantile(q, concept), legend=f"p{100 * q:g}"),
    ]
