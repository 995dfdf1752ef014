"""What makes two runs comparable: a run's facts go in, the names of what must be alike come out."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# What of a scenario does not change the load: whom it goes to, what is kept, and which of many
# equal workloads this one was.
NOT_THE_LOAD = frozenset(
    {"target", "model", "headers", "seed", "keep_text", "slo", "name", "description", "timeouts"}
)


def workload(scenario: Mapping[str, Any]) -> str:
    """A hash of what is asked, how often and for how long."""
    load = {key: found for key, found in scenario.items() if key not in NOT_THE_LOAD}
    text = json.dumps(load, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(facts: Mapping[str, Any]) -> dict[str, str]:
    """Of a run.json: model, workload, hardware, server flags where they are known, Prony."""
    return {**setting(facts), **_server(facts)}


def setting(facts: Mapping[str, Any]) -> dict[str, str]:
    """The part that two builds share: all but the server's own version and flags."""
    target, host = facts.get("target") or {}, facts.get("host") or {}
    found = {
        "model": target.get("model"),
        "dialect": target.get("dialect"),
        "workload": workload(facts.get("scenario") or {}),
        "hardware": _hardware(host),
        "prony": facts.get("prony"),
    }
    return {key: str(value) for key, value in found.items() if value}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What is not alike, in words: "workload: 1f3c... there, 88ab... here"."""
    return [
        f"{key}: {one.get(key, 'unknown')} there, {other.get(key, 'unknown')} here"
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def _hardware(host: Mapping[str, Any]) -> str:
    cpus = host.get("usable_cpus") or host.get("cpus")
    parts = [host.get("machine"), f"{cpus} cpus" if cpus else None, host.get("gpu")]
    return ", ".join(str(part) for part in parts if part)


def _server(facts: Mapping[str, Any]) -> dict[str, str]:
    server = facts.get("server")
    if not isinstance(server, Mapping):
        return {}
    return {f"server.{key}": str(found) for key, found in sorted(server.items())}
