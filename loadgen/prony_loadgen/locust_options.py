"""Prony's options of `locust -f`: Locust's parser in, the scenario's changed keys out."""

from typing import Any

from prony_loadgen.strict_yaml import FileError


def add_options(parser: Any) -> None:
    """Adds them to Locust's parser; each may come from the environment too."""
    group = parser.add_argument_group("Prony", "how the load is made, timed and judged")

    def add(option: str, **about: Any) -> None:
        name = option.removeprefix("--").replace("-", "_").upper()
        group.add_argument(option, env_var=f"PRONY_{name}", **about)

    add("--scenario", metavar="NAME", help="a shipped scenario or a YAML file")
    add(
        "--slo",
        action="append",
        default=[],
        metavar="SLO",
        help="a name, a file, or 'ttft p99 < 500ms'",
    )
    # --profile is Locust's own.
    add("--profile-when", metavar="WHEN", help="capture a profile: on-breach, or at=30s")
    # Text, as all options are: a master sends them to its workers.
    add("--out", metavar="DIR", help="the run folder (default: a new one in runs/)")
    add("--model", metavar="NAME", help="default: the only one that the server lists")
    add("--dialect", metavar="NAME", help="for the scenario: openai-chat or openai-completions")
    add("--api-key-env", metavar="VAR", help="the environment variable with the key")
    add("--warmup", metavar="TIME", help="load that comes before what is measured")
    add("--seed", metavar="N", help="the same seed sends the same requests at the same times")
    add("--keep-text", action="store_const", const=True, help="store the output texts")
    add("--no-probe", action="store_true", help="leave out the request before the load")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the scenario")
    add(
        "--lost-worker",
        choices=("invalid", "warn"),
        default="invalid",
        help="how a run is graded that lost a worker (default: invalid)",
    )


def changes(options: Any) -> dict[str, object]:
    """The scenario's keys that the options set, for load_scenario. Raises FileError."""
    found: dict[str, object] = {}
    for key in ("model", "dialect", "warmup", "seed", "keep_text"):
        if (value := getattr(options, key)) is not None:
            found[key] = value
    for assignment in options.set:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise FileError([f"--set {assignment}: expected KEY=VALUE"])
        found[key] = value
    return found
