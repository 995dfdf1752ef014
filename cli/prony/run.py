"""Drive a scenario at a server, time every token, judge the run and write a run folder.

The target is --target, else the scenario's, else $OPENAI_BASE_URL; its key is in $OPENAI_API_KEY or
in the variable that --api-key-env names.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from prony.errors import UsageError
from prony.gate import add_slo

HELP = "drive a scenario at a server and judge the run"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", nargs="?", default="chat", metavar="SCENARIO", help="a shipped one or a file")
    add("--target", "--host", metavar="URL", help="the server, with or without /v1")
    add_slo(parser)
    add("--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    add("--dry-run", action="store_true", help="say what would be sent, and stop there")
    add("--no-probe", action="store_true", help="leave out the request that goes before the load")
    add("--metrics-port", type=int, metavar="PORT", help="serve /metrics on 127.0.0.1 meanwhile")
    add("--quiet", action="store_true", help="no progress line")
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
    add("--dialect", metavar="NAME", help="openai-chat or openai-completions")
    add("--timeout", metavar="TIME", help="for one whole request")
    add("--header", action="append", metavar="'NAME: VALUE'", help="repeatable; ${VAR} is filled")
    add("--api-key-env", metavar="VAR", help="the environment variable with the key")
    add("--extra-body", metavar="JSON", help="keys to add to every request's body")
    add("--keep-text", action="store_const", const=True, help="store the output texts")
    add("--seed", metavar="N", help="the same seed sends the same requests at the same times")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any key: arrivals.rate=5")


def run(args: argparse.Namespace) -> int:
    from prony.judging import Judge
    from prony_loadgen.locust_user import RunOptions, run_scenario
    from prony_loadgen.scenario import load_scenario

    scenario = load_scenario(args.scenario, overrides(args))
    return run_scenario(
        scenario,
        Judge(args.slo, scenario.slo),
        RunOptions(
            target=args.target,
            api_key_env=args.api_key_env,
            out=args.out,
            probe=not args.no_probe,
            dry_run=args.dry_run,
            metrics_port=args.metrics_port,
            quiet=args.quiet,
        ),
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
    for assignment in args.set:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {assignment}: expected KEY=VALUE, such as arrivals.rate=5")
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
        raise UsageError(f"--extra-body {text}: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise UsageError(f'--extra-body {text}: expected an object such as {{"top_k": 20}}')
    return body
