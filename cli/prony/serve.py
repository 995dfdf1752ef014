"""Start the reference server: continuous batching behind an OpenAI-compatible API."""

import argparse
import asyncio
import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from prony.errors import UsageError, port

if TYPE_CHECKING:
    from prony_server.faults import Fault

HELP = "start the reference server"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="tiny (made here, no download), a model folder, or a hub name",
    )
    add("--device", default="auto", choices=("auto", "cuda", "cpu"))
    add(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="default: float32 on a CPU, the model's own on a GPU",
    )
    add(
        "--quantize",
        choices=("int8", "int4"),
        help="hold the weights of linear layers as integers",
    )
    add(
        "--group-size",
        type=int,
        choices=(32, 64, 128, 256),
        help="inputs that share a scale in int4 (default: 32)",
    )
    add(
        "--calibrate",
        type=Path,
        metavar="PROMPTS",
        help="a JSONL of prompts, by which quantisation learns which inputs matter",
    )
    add(
        "--compile",
        action="store_true",
        help="torch.compile for decode steps: a minute or more at start",
    )
    add("--enforce-eager", action="store_true", help="no CUDA graphs")
    add("--host", default="127.0.0.1")
    add("--port", type=port, default=8000, help="0 takes a free one")
    add(
        "--served-model-name", metavar="NAME", help="the name that clients ask for (default: MODEL)"
    )
    add(
        "--api-key",
        metavar="KEY",
        help="ask it of every client (default: $PRONY_API_KEY, else none)",
    )
    limits = parser.add_argument_group("limits, under vLLM's names")
    add = limits.add_argument
    add("--max-model-len", type=int, metavar="TOKENS", help="prompt and output together")
    add("--max-num-seqs", type=int, metavar="N", help="sequences in one batch")
    add("--max-num-batched-tokens", type=int, metavar="TOKENS", help="token budget of one step")
    add("--block-size", type=int, metavar="TOKENS", help="tokens a KV block")
    add(
        "--num-gpu-blocks-override",
        type=int,
        metavar="N",
        help="KV blocks, instead of as many as memory allows",
    )
    add(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="of the GPU's memory, for weights, steps and KV cache together (default: 0.9); on a "
        "CPU of the memory that is free, for steps and KV cache (default: 0.25, and 4 GiB at most)",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="keep what prompts share, and answers to be continued, in the KV cache (default: on)",
    )
    add(
        "--max-queue",
        type=int,
        metavar="N",
        help="refuse requests with 429 while so many wait for a place (default: any number may)",
    )
    add(
        "--long-prompts",
        choices=("refuse", "sliding-window"),
        default="refuse",
        help="a prompt that does not fit gets a 400, or is cut to its end, and the answer says so",
    )
    add(
        "--batching",
        choices=("continuous", "static", "none", "generate"),
        default="continuous",
        help="static: whole batches to their end; none: one request at a time; generate: one at a "
        "time by the model's own generate",
    )
    process = parser.add_argument_group("the process")
    add = process.add_argument
    add(
        "--drain-seconds",
        type=float,
        metavar="S",
        help="how long running streams may go on after SIGTERM",
    )
    add("--torch-threads", type=int, metavar="N", help="default: 1 for tiny, else torch decides")
    add(
        "--debug-traces",
        action="store_true",
        help="show the slowest of the last requests at /debug/traces (some 0.4 ms a request)",
    )
    add("--traces", type=Path, metavar="FILE", help="append spans to FILE as OTLP JSON lines")
    add(
        "--request-log",
        metavar="FILE",
        help="append one line of JSON a request to FILE; - is standard output (default: none)",
    )
    add(
        "--metric-names",
        choices=("prony", "vllm"),
        default="prony",
        help="vllm: /metrics under the names that dashboards and tools made for vLLM ask for",
    )
    hidden = parser.add_argument_group("to find and to look into")
    add = hidden.add_argument
    add(
        "--inject",
        type=fault,
        action="append",
        metavar="NAME=VALUE",
        help="put a named slowness in, such as slow-tokenizer=20ms (server/README.md has them all; "
        "may be given several times)",
    )
    add(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="let clients capture profiles into DIR by POST /start_profile",
    )
    add(
        "--profiler",
        choices=("torch", "py-spy"),
        default="torch",
        help="what captures: torch's operators, or the Python stacks of all threads",
    )


def fault(text: str) -> "Fault":
    from prony_server.faults import FaultError, parse

    try:
        return parse(text, "")
    except FaultError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None


def run(args: argparse.Namespace) -> int:
    if find_spec("torch") is None or find_spec("aiohttp") is None:
        raise UsageError("the reference server needs torch: pip install 'prony[server]'")
    from prometheus_client import CollectorRegistry

    from prony.observability import server_tracer
    from prony.otlp_metrics import server_exporting
    from prony_server.app import ServeError, serve
    from prony_server.config import ConfigError, ServeConfig
    from prony_server.loading import ModelError
    from prony_server.trace_ring import TraceRing

    if args.traces is not None:
        try:
            args.traces.open("ab").close()
        except OSError as error:
            raise UsageError(f"--traces {args.traces}: {error.strerror}") from None
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in {"command", "run", "argv", "traces", "debug_traces"} and value is not None
    }
    given["inject"] = tuple(args.inject or ())
    given.setdefault("api_key", os.environ.get("PRONY_API_KEY"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        config = ServeConfig(**given)
        ring = TraceRing() if args.debug_traces else None
        registry = CollectorRegistry()
        with (
            server_exporting(registry, config.port),
            server_tracer(args.traces, ring) as tracer,
        ):
            return asyncio.run(
                serve(
                    config,
                    registry=registry,
                    tracer=tracer,
                    ready=_say_ready,
                    traces=ring,
                )
            )
    except (ConfigError, ModelError, ServeError) as error:
        raise UsageError(str(error)) from None


def _say_ready(url: str) -> None:
    # On stdout, alone: a script that started us waits for this line.
    print(f"ready {url}", flush=True)
