"""Noise profiles between gates: a setting goes in, what is known of its scatter comes out, is kept.

A profile that cannot be read is none: the gate then rests on its own pairs, which costs power and
no correctness.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prony_slo.noise import NoiseProfile


def load(setting: Mapping[str, str]) -> NoiseProfile:
    """The profile of a setting (fingerprint.setting), empty where there is none yet."""
    empty = NoiseProfile(dict(setting), {})
    try:
        found = NoiseProfile.from_json(json.loads(path_of(setting).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return empty
    return found if found.fingerprint == dict(setting) else empty


def save(profile: NoiseProfile) -> Path:
    """Replaces the profile of its setting in one step; returns where it lies."""
    path = path_of(profile.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(profile.to_json(), indent=1, allow_nan=False) + "\n", "utf-8")
    beside.replace(path)
    return path


def of_workload(workload: str) -> Iterator[NoiseProfile]:
    """Every profile of this workload, whatever the model and the machine."""
    for path in sorted(_folder().glob("*.json")):
        try:
            found = NoiseProfile.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        if found.fingerprint.get("workload") == workload:
            yield found


def path_of(setting: Mapping[str, str]) -> Path:
    text = json.dumps(dict(setting), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return _folder() / f"{name}.json"


def _folder() -> Path:
    return Path(os.environ.get("PRONY_CACHE") or "~/.cache/prony").expanduser() / "noise"
