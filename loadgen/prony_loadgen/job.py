"""What a master asks of its workers: agreed settings in, a message out; and the way back.

A worker makes the same settings of it: the schedule follows from the seed. Keys travel in no
message; a worker takes them from its own environment, as the master did.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pydantic

from prony_loadgen.endpoint import find_endpoint
from prony_loadgen.prompts import drafts
from prony_loadgen.scenario import Scenario, Talk
from prony_loadgen.settings import NoJudge, Settings, Shard, for_scenario, for_tasks
from prony_loadgen.strict_yaml import AS_DUMPED, FileError
from prony_loadgen.target import Target
from prony_loadgen.token_count import TokenCount

# What the master says, and what workers answer.
CLOCK, JOB, START, STOP = "prony_clock", "prony_job", "prony_start", "prony_stop"
READY, TICK, DONE = "prony_ready", "prony_tick", "prony_done"
TO_WORKERS = (CLOCK, JOB, START, STOP)
TO_MASTER = (CLOCK, READY, TICK, DONE)

_SAMPLE = 50  # prompts that are compared


def job_of(
    talk: Talk, settings: Settings, *, api_key_env: str | None, limit: float | None = None
) -> dict[str, Any]:
    """The message that lets a worker make the same settings."""
    target, form = settings.target, settings.form
    by_scenario = settings.scenario is not None
    said = (settings.scenario or talk).model_dump(mode="json", exclude_none=True)
    return {
        "name": settings.name,
        "by_scenario": by_scenario,
        "talk": said,
        "url": target.url,
        "base_path": target.base_path,
        "left_out": list(target.left_out),
        "renamed": [list(names) for names in target.renamed],
        "model": form.model,
        "api_key_env": api_key_env,
        "keyed": target.api_key is not None,
        "warmup": settings.warmup,
        "limit": limit,
        "tokens": settings.tokens.to_message(),
        "fingerprint": fingerprint(settings),
    }


def settings_of(job: Mapping[str, Any]) -> Settings:
    """The settings of a worker's part. Raises FileError or TargetError for what is missing here."""
    kind = Scenario if job["by_scenario"] else Talk
    try:
        talk = kind.model_validate(job["talk"], context=AS_DUMPED)
    except pydantic.ValidationError as error:
        raise FileError([f"the master's job cannot be read: {error}"]) from None
    target = _target(talk, job)
    if isinstance(talk, Scenario):
        tokens = TokenCount.from_message(job["tokens"])
        settings = for_scenario(
            talk, target, job["model"], NoJudge(), limit=job["limit"], tokens=tokens
        )
    else:
        settings = for_tasks(job["name"], talk, target, job["model"], NoJudge(), facts={})
        settings = replace(settings, warmup=job["warmup"])
    settings = replace(settings, run_id=job["run"], shard=Shard(job["index"], job["of"]))
    if fingerprint(settings) != job["fingerprint"]:
        raise FileError(
            [
                "it would send other requests than the master: it has another prompts file or "
                "another version of Prony"
            ]
        )
    return settings


def fingerprint(settings: Settings) -> str:
    """The same for settings that send the same requests at the same times."""
    seen = hashlib.sha256(array("d", settings.schedule or ()).tobytes())
    scenario = settings.scenario
    if scenario is not None:
        seen.update(scenario.model_dump_json(exclude={"prompts"}).encode())
        for draft in islice(drafts(scenario, settings.tokens), _SAMPLE):
            seen.update(json.dumps(asdict(draft.prompt), sort_keys=True).encode())
            seen.update(f"{draft.output_tokens}".encode())
        file = scenario.prompts.file if scenario.prompts is not None else None
        if file is not None:
            seen.update(Path(file).read_bytes())
    return seen.hexdigest()


def _target(talk: Talk, job: Mapping[str, Any]) -> Target:
    target = find_endpoint(talk, job["url"], job["api_key_env"], os.environ)
    if job["keyed"] and target.api_key is None:
        name = job["api_key_env"] or "OPENAI_API_KEY"
        raise FileError([f"the environment variable {name}, which has the key, is not set here"])
    return replace(
        target,
        base_path=job["base_path"],
        left_out=tuple(job["left_out"]),
        renamed=tuple((old, new) for old, new in job["renamed"]),
    )
