"""The board Latency of one engine: percentiles and shapes, client beside server, and the phases."""

from prony_dashboards import clientside, promql, serverside
from prony_dashboards.board import RUN, Board, board, engine_variables, limit_variables
from prony_dashboards.engines import Concept, Engine
from prony_dashboards.findings import LOAD, needing
from prony_dashboards.panels import Panel, Query, heatmap, timeseries, words
from prony_loadgen import telemetry as load

PHASES: tuple[tuple[Concept, str], ...] = (
    ("queue_time", "queue"),
    ("prefill_time", "prefill"),
    ("decode_time", "decode"),
)


def latency(engine: Engine) -> Board:
    return board(
        "latency",
        f"Where the time of a request to {engine.title} goes, as users feel it and as the server "
        "tells it.",
        [
            ("Time to first token", _first_token(engine)),
            ("Tokens after the first", _tokens(engine)),
            ("Whole requests", _whole(engine)),
        ],
        [*engine_variables(engine), *limit_variables()],
        engine,
    )


def _first_token(engine: Engine) -> list[Panel]:
    client = promql.mean(load.TIME_TO_FIRST_TOKEN, RUN)
    if engine.has("ttft"):
        difference = needing(
            timeseries(
                "TTFT: client minus server",
                "Mean time to first token at the client less the mean at the server: network, "
                "accept queue and the load generator's own lag. Should lie near 0; below it the "
                "two count different requests.",
                [Query(f"{client} - {engine.mean('ttft')}", legend="outside the server")],
                unit="s",
                minimum=None,
            ),
            LOAD,
        )
        shape = heatmap(
            "TTFT at the server, all of it",
            "Every request in its bucket.",
            engine.buckets("ttft"),
            unit="s",
        )
    else:
        difference = words("TTFT: client minus server", engine.says("ttft"))
        shape = words("TTFT at the server, all of it", engine.says("ttft"), width=12)
    return [
        clientside.ttft(),
        serverside.of(
            engine,
            ["ttft"],
            timeseries,
            "TTFT at the server",
            "From a request's arrival to its first token leaving. Points open the trace of a "
            "request that fell there, where the server exports exemplars.",
            serverside.percentiles(engine, "ttft"),
            unit="s",
            limit="$slo_ttft",
        ),
        difference,
        needing(
            heatmap(
                "TTFT at the client, all of it",
                "Every successful request in its bucket: shows two populations that percentiles "
                "hide.",
                promql.buckets(load.TIME_TO_FIRST_TOKEN, RUN),
                unit="s",
            ),
            LOAD,
        ),
        shape,
    ]


def _tokens(engine: Engine) -> list[Panel]:
    concept: Concept = "itl" if engine.has("itl") else "tpot"
    return [
        clientside.itl(),
        clientside.tpot(),
        serverside.of(
            engine,
            ["tpot"],
            timeseries,
            "TPOT at the server",
            "A request's decode time by its tokens after the first.",
            serverside.percentiles(engine, "tpot"),
            unit="s",
            limit="$slo_tpot",
        ),
        needing(
            heatmap(
                "Token gaps at the client, all of them",
                "Each token in the bucket of its gap: stalls stand apart from the steady pace.",
                promql.buckets(load.INTER_TOKEN_LATENCY, RUN),
                unit="s",
            ),
            LOAD,
        ),
        heatmap(
            "Token times at the server, all of them",
            ("Each gap between tokens in its bucket. " if concept == "itl"
             else "Each request's time per token in its bucket. ") + engine.says("itl", concept),
            engine.buckets(concept),
            unit="s",
        ),
    ]  # fmt: skip


def _whole(engine: Engine) -> list[Panel]:
    phases = [
        Query(engine.mean(concept), legend=name) for concept, name in PHASES if engine.has(concept)
    ]
    return [
        serverside.of(
            engine,
            [concept for concept, _ in PHASES],
            timeseries,
            "Where a request's time goes",
            "Mean seconds that requests spent waiting, in prefill and in decode, stacked.",
            phases,
            unit="s",
            width=12,
            stacked=True,
        ),
        timeseries(
            "Whole requests at the server",
            "As the server times a request. Dashed: the limit chosen above. " + engine.says("e2e"),
            serverside.percentiles(engine, "e2e"),
            unit="s",
            width=12,
            limit="$slo_e2e",
        ),
        needing(
            timeseries(
                "Whole requests at the client",
                "To the last token, from the intended moment. Dashed: the limit chosen above.",
                clientside.percentiles(load.REQUEST_DURATION),
                unit="s",
                width=12,
                limit="$slo_e2e",
            ),
            LOAD,
        ),
        clientside.beyond(width=12),
    ]
