"""How wrong this machine measures: records beside the truth in, errors by load out, and kept.

`prony calibrate` fills it; every run's doubts ask it what load may be trusted here.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from prony_loadgen.account import nearest_rank
from prony_loadgen.ground_truth import Truth
from prony_loadgen.record import RequestRecord

# A load is trusted where 99 % of TTFTs and of gaps between tokens are this right, in seconds.
TTFT_ERROR = 0.005
ITL_ERROR = 0.001
PACE = 0.99  # of the requests that were due, so many must have been sent
# Of its processor the ground-truth server may use so much; from there on it is the limit itself.
SERVER_BUSY = 0.9
WAITED = 0.05  # of the time, for a processor: then other work made the error


@dataclass(frozen=True, slots=True)
class Level:
    """What was seen at one load. Errors in seconds, of each request beside its own truth."""

    streams: int
    reads_per_s: float
    requests: int
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    send_lag_p99: float
    pace: float  # requests sent, as a share of those that were due
    client_cpu: float  # shares of a processor
    client_wait: float | None  # that the client waited for while other work had it
    server_cpu: float

    @property
    def trusted(self) -> bool:
        right = self.ttft_p99 <= TTFT_ERROR and self.itl_p99 <= ITL_ERROR
        return right and self.pace >= PACE and self.requests > 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine's measuring error."""

    levels: tuple[Level, ...]
    tokens_per_s: float | None  # the most that one process took, 20 tokens a write
    quick: bool
    when: str  # UTC, ISO
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())

    @property
    def trustworthy(self) -> Level | None:
        """The largest load that may be trusted: all below it may be too."""
        good = None
        for level in sorted(self.levels, key=lambda level: level.streams):
            if not level.trusted:
                break
            good = level
        return good

    @property
    def limit_found(self) -> bool:
        """Whether a load was tried that may not be trusted."""
        return any(not level.trusted for level in self.levels)

    @property
    def disturbed(self) -> bool:
        """Whether other work had the client's processor while it was measured."""
        return any((level.client_wait or 0.0) > WAITED for level in self.levels)

    def summary(self) -> dict[str, Any]:
        """What run.json holds of it."""
        good = self.trustworthy
        return {
            "streams": good.streams if good else 0,
            "reads_per_s": good.reads_per_s if good else 0.0,
            "ttft_error_p99": good.ttft_p99 if good else None,
            "itl_error_p99": good.itl_p99 if good else None,
            "limit_found": self.limit_found,
            "when": self.when,
        }

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Calibration":
        """Raises KeyError or TypeError for what to_json did not write."""
        facts = {name: told[name] for name in cls.__slots__}
        return cls(**{**facts, "levels": tuple(Level(**level) for level in told["levels"])})


def level(
    streams: int,
    records: Iterable[RequestRecord],
    truths: Iterable[Truth],
    *,
    window: tuple[float, float],
    due: int,
    client: Mapping[str, Any],
    server_cpu: float,
) -> Level:
    """What the records of a window show beside the truth; `due` were to be sent in it.

    `client` is what run.json says of the load generator.
    """
    by_id = {truth.id: truth for truth in truths}
    start, end = window
    inside = [r for r in records if start <= r.intended < end]
    pairs = [(r, by_id[r.trace_id]) for r in inside if r.ok and r.ttft and r.trace_id in by_id]
    ttfts = sorted(abs(r.ttft - truth.ttft) for r, truth in pairs if r.ttft is not None)
    gaps: list[float] = []
    for record, truth in pairs:
        told = [b.at - a.at for a, b in pairwise(record.arrivals)]
        true = [b - a for a, b in pairwise(truth.writes)]
        if len(told) == len(true):
            gaps += [abs(one - other) for one, other in zip(told, true, strict=True)]
    gaps.sort()
    lags = sorted(r.send_lag for r in inside if r.send_lag is not None)
    reads = sum(reads_of(record) for record in inside)
    return Level(
        streams=streams,
        reads_per_s=round(reads / (end - start), 1),
        requests=len(pairs),
        ttft_p50=_rounded(ttfts, 50),
        ttft_p99=_rounded(ttfts, 99),
        itl_p50=_rounded(gaps, 50),
        itl_p99=_rounded(gaps, 99),
        send_lag_p99=_rounded(lags, 99),
        pace=round(len(inside) / due, 4) if due else 0.0,
        client_cpu=client["cpu_share"],
        client_wait=client.get("cpu_wait_share"),
        server_cpu=server_cpu,
    )


def reads_of(record: RequestRecord) -> int:
    """How often the client had to look at a socket for it: tokens that came together are one."""
    return len({arrival.at for arrival in record.arrivals})


def machine() -> dict[str, Any]:
    """What a calibration depends on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "node": platform.node(),
        "processor": _processor(),
        "usable_cpus": usable,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "prony": version("prony"),
    }


def keep(calibration: Calibration) -> Path:
    """Stores it for this machine and returns where. Raises OSError."""
    path = _path(calibration.machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(calibration.to_json(), indent=1) + "\n", encoding="utf-8")
    return path


def kept() -> Calibration | None:
    """What is known of this machine; None where nobody calibrated it as it is now."""
    try:
        told = json.loads(_path(machine()).read_text(encoding="utf-8"))
        return Calibration.from_json(told)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(facts: Mapping[str, Any]) -> Path:
    cache = Path(os.environ.get("PRONY_CACHE") or "~/.cache/prony").expanduser()
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "calibration" / f"{key}.json"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _rounded(ordered: Sequence[float], percent: int) -> float:
    return round(nearest_rank(ordered, percent) or 0.0, 7)
