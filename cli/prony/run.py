"""Drive a scenario at a server, time every token, judge the run and write a run folder.

The target is --target, else the scenario's, else $OPENAI_BASE_URL; its key is in $OPENAI_API_KEY or
in the variable that --api-key-env names.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.errors import UsageError, port
from prony.gate import add_policy, add_slo, asked

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from prony.profiling.armed import Asked as ProfileAsked
    from prony_loadgen.locust_user import Exporting

MOST_PROCESSES = 256

HELP = "drive a scenario at a server and judge the run"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", nargs="?", default="chat", metavar="SCENARIO", help="a shipped one or a file")
    add("--target", "--host", metavar="URL", help="the server, with or without /v1")
    add_slo(parser)
    add_policy(parser)
    add("--no-regression", action="store_true", help="judge the SLO's objectives only")
    add("--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    add("--dry-run", action="store_true", help="say what would be sent, and stop there")
    add("--no-probe", action="store_true", help="leave out the request that goes before the load")
    add("--metrics-port", type=port, metavar="PORT", help="serve /metrics meanwhile")
    add("--metrics-host", metavar="HOST", default="127.0.0.1",
        help="of --metrics-port (default: 127.0.0.1, so that nobody else sees it)")  # fmt: skip
    add("--quiet", action="store_true", help="no progress line")
    add("--no-server-metrics", action="store_true", help="do not ask the target's /metrics")
    add("--grafana", metavar="URL", help="tell it of the run as annotations ($GRAFANA_TOKEN)")
    add("--processes", type=int, default=1, metavar="N", help="share the load out to so many")
    add("--lost-worker", choices=("invalid", "warn"), default="invalid",
        help="how a run is graded that lost one of its processes (default: invalid)")  # fmt: skip
    add("--web", action="store_true", help="open Locust's web UI with live charts of the run")
    add("--web-port", type=port, default=8089, metavar="PORT", help="of --web (default: 8089)")
    add_profile(parser)
    keys = parser.add_argument_group("in place of the scenario's values")
    add = keys.add_argument
    add("--rate", metavar="R", help="requests a second, open loop")
    add("--concurrency", metavar="N", help="users who each wait for their answer, closed loop")
    add("--duration", metavar="TIME", help="how long to measure, such as 30s")
    add("--requests", metavar="N", help="how many requests to measure")
    add("--warmup", metavar="TIME", help="load before measuring")
    add("--input-tokens", metavar="LENGTHS", help="64, 16-256, or a YAML distribution")
    add("--prompts", metavar="FILE", help="JSONL with a prompt or messages a line")
    add("--output-tokens", metavar="LENGTHS", help="as --input-tokens")
    add("--model", metavar="NAME", help="default: the only one that the server lists")
    add(
        "--dialect",
        metavar="NAME",
        help="openai-chat (default), openai-completions, responses, anthropic, ollama-chat, "
        "ollama-generate or tgi",
    )
    add("--max-total-tokens", metavar="N", help="stop before more tokens are spent, in and out")
    add("--timeout", metavar="TIME", help="for one whole request")
    add("--ca", metavar="FILE", help="trust this authority (PEM) instead of the system's")
    add("--cert", metavar="FILE", help="our own certificate for an https:// target (PEM)")
    add("--cert-key", metavar="FILE", help="its key, where --cert does not hold it")
    add("--insecure", action="store_const", const=True, help="trust any certificate")
    add("--proxy", metavar="URL", help="in place of what HTTP_PROXY and its like say")
    add("--header", action="append", metavar="'NAME: VALUE'", help="repeatable; ${VAR} is filled")
    add("--api-key-env", metavar="VAR", help="the environment variable with the key")
    add("--extra-body", metavar="JSON", help="keys to add to every request's body")
    add("--keep-text", action="store_const", const=True, help="store the output texts")
    add("--seed", metavar="N", help="the same seed sends the same requests at the same times")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any key: arrivals.rate=5")


def add_profile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a look into the server, see docs/profiling.md").add_argument
    add("--profile", metavar="WHEN", help="capture a profile: on-breach of the SLO, or at=30s")
    add("--profile-seconds", type=float, metavar="S", help="of one capture (default: 5, most: 10)")
    add("--profile-steps", type=int, metavar="N", help="of the engine, in place of more seconds")
    add("--profile-captures", type=int, metavar="N", help="on-breach: at most so many (default: 1)")
    add("--profile-cooldown", type=float, metavar="S", help="between them (default: 60)")
    add("--server-dir", metavar="DIR", help="where the server writes, if this machine sees it")


def run(args: argparse.Namespace) -> int:
    from prony.annotations import Annotating
    from prony.grafana import connect
    from prony.judging import Judge
    from prony.profiling.armed import Profiling
    from prony.server_metrics import WithServer
    from prony_loadgen.endpoint import find_endpoint
    from prony_loadgen.locust_user import RunOptions, run_scenario
    from prony_loadgen.scenario import load_scenario
    from prony_loadgen.settings import Judge as AnyJudge

    if not 1 <= args.processes <= MOST_PROCESSES:
        raise UsageError(f"--processes {args.processes}: expected 1 to {MOST_PROCESSES}")
    scenario = load_scenario(args.scenario, overrides(args))
    what = asked(args)
    own = Judge(what.slo, scenario.slo, what)
    judge: AnyJudge = own
    capturing = None if args.profile is None else _profile(args)
    if not args.dry_run and (capturing is not None or not args.no_server_metrics):
        target = find_endpoint(scenario, args.target, args.api_key_env, os.environ)
        if capturing is not None:
            judge = Profiling(judge, own.slo, target, capturing, folder=args.server_dir)
        if not args.no_server_metrics:
            judge = WithServer(judge, target)
    if args.grafana is not None and not args.dry_run:
        judge = Annotating(judge, connect(args.grafana))
    return run_scenario(
        scenario,
        judge,
        RunOptions(
            target=args.target,
            api_key_env=args.api_key_env,
            out=args.out,
            probe=not args.no_probe,
            dry_run=args.dry_run,
            metrics_port=args.metrics_port,
            metrics_host=args.metrics_host,
            exporting=_exporting(),
            beside=_gpus,
            quiet=args.quiet,
            processes=args.processes,
            web_port=args.web_port if args.web else None,
            lost_worker=args.lost_worker,
            slo=what.slo,
            argv=tuple(args.argv),
        ),
    )


def _gpus(registry: "CollectorRegistry") -> None:
    """The GPUs of the load generator's own host, where NVML tells of any."""
    from prony_server.gpu import register_gpus

    register_gpus(registry)


def _exporting() -> "Exporting | None":
    # Only now that Locust has patched the process: prometheus_client brings ssl.
    from prony.otlp_metrics import load_exporting

    return load_exporting()


def _profile(args: argparse.Namespace) -> "ProfileAsked":
    from prony.profiling.armed import parse_asked

    return parse_asked(
        args.profile,
        seconds=args.profile_seconds,
        steps=args.profile_steps,
        captures=args.profile_captures,
        cooldown=args.profile_cooldown,
    )


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The scenario's keys that the command line sets, for load_scenario."""
    from prony_loadgen.scenario import OPTIONS

    given = {key: getattr(args, option[2:].replace("-", "_")) for option, key in OPTIONS.items()}
    given["headers"] = _headers(args.header)
    given["extra_body"] = _body(args.extra_body)
    # The target wins by its own way (find_endpoint), so that no error names the wrong option.
    given.pop("target", None)
    changes = {key: value for key, value in given.items() if value is not None}
    return changes | assignments(args.set)


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """What --set says: any keys of the scenario."""
    changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {text}: expected KEY=VALUE, such as arrivals.rate=5")
        changes[key] = value
    return changes


def _headers(lines: list[str] | None) -> dict[str, str] | None:
    if lines is None:
        return None
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            # The line itself may hold a key, so it is not shown.
            raise UsageError("--header: expected 'Name: value', with a colon")
        headers[name.strip()] = value.strip()
    return headers


def _body(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        body = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--extra-body {text:.200}: not JSON ({error})") from None
    except RecursionError:
        raise UsageError(f"--extra-body {text:.60}...: nested too deeply") from None
    if not isinstance(body, dict):
        raise UsageError(f'--extra-body {text:.200}: expected an object such as {{"top_k": 20}}')
    return body
