"""From evidence to a diagnosis: each rule is asked, and what was found comes out ranked.

Several may hold. They are ranked by what they cost a mean request times how sure it is; before all
others comes a load generator that cannot be trusted, since nothing else of such a run counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prony.diagnosis.advice import TEXTS
from prony.diagnosis.evidence import Evidence
from prony.diagnosis.thresholds import limit
from prony.diagnosis.verdicts import RULES, Found

UNSURE = 0.5  # of a confidence, where the client cannot be trusted
FEW = 0.7  # of a confidence, of few requests
LEAST = 0.1  # of a request's time: it is worth saying that nobody knows where it went


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding with its name and what to do."""

    id: str
    title: str
    found: Found
    share: float | None  # of a mean request's time
    advice: tuple[str, ...]
    measure: str  # what would raise the confidence

    @property
    def weight(self) -> float:
        return self.found.cost * self.found.confidence

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "ms_per_request": round(self.found.cost * 1000, 3),
            "share_of_latency": None if self.share is None else round(self.share, 4),
            "confidence": round(self.found.confidence, 2),
            "why": self.found.why,
            "numbers": {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in self.found.numbers.items()
            },
            "advice": list(self.advice),
            "measure": self.measure,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What holds the server back, first things first; never without a verdict."""

    verdicts: tuple[Verdict, ...]
    e2e: float | None  # seconds of a mean request
    split: Mapping[str, float]
    engine: str | None
    missing: tuple[str, ...]  # what could not be seen, in words
    notes: tuple[str, ...] = ()  # what one must know of the circumstances

    def to_json(self) -> dict[str, Any]:
        """A JSON document: milliseconds, shares of 0..1."""
        return {
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "e2e_ms": None if self.e2e is None else round(self.e2e * 1000, 3),
            "split_ms": {name: round(s * 1000, 3) for name, s in self.split.items()},
            "engine": self.engine,
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Every verdict that holds, ranked; "none" or "cannot_tell" where no other does."""
    e2e = evidence.e2e
    engine = evidence.server.engine if evidence.server is not None else None
    asked = ((name, decide(evidence)) for name, decide in RULES.items())
    found = {name: each for name, each in asked if each is not None}
    found = {name: _weighed(name, each, evidence, found) for name, each in found.items()}
    least = limit("blamed") * (evidence.own or 0.0)
    held = {n: f for n, f in found.items() if f.harm or f.cost >= least}
    if not held or _unknown(evidence):
        held |= _nothing(evidence, held)
    verdicts = [_verdict(name, each, e2e, engine) for name, each in held.items()]
    # Ignorance explains nothing, however much of the time it is about.
    verdicts.sort(
        key=lambda v: (v.id == "load_generator", v.id != "cannot_tell", v.weight), reverse=True
    )
    return Diagnosis(
        tuple(verdicts),
        e2e,
        evidence.split(),
        engine,
        _missing(evidence),
        _notes(evidence),
    )


def _weighed(name: str, found: Found, evidence: Evidence, all_found: Mapping[str, Found]) -> Found:
    """Less sure where the client is in doubt, or where few requests were seen."""
    factor = 1.0
    if name != "load_generator" and "load_generator" in all_found:
        factor *= UNSURE
    seen = evidence.client.answered if evidence.client is not None else None
    if seen is None and evidence.server is not None:
        seen = int(evidence.server.requests or 0)
    if seen is not None and seen < limit("few"):
        factor *= FEW
    cost = min(found.cost, evidence.e2e) if evidence.e2e and not found.harm else found.cost
    return replace(found, cost=cost, confidence=found.confidence * factor)


def _verdict(name: str, found: Found, e2e: float | None, engine: str | None) -> Verdict:
    text = TEXTS[name]
    share = found.cost / e2e if e2e else None
    return Verdict(name, text.title, found, share, text.advice(engine), text.measure)


def _unknown(evidence: Evidence) -> bool:
    """Whether most of a request's time is nowhere to be seen."""
    server = evidence.server
    return server is None or server.e2e is None or server.queue is None


def _nothing(evidence: Evidence, held: Mapping[str, Found]) -> dict[str, Found]:
    e2e, server, client = evidence.e2e, evidence.server, evidence.client
    if e2e is None:
        why = "no request was answered" if client is not None else "no request ended meanwhile"
        return {"cannot_tell": Found(0.0, 0.9, why)}
    if server is None or server.e2e is None or server.queue is None:
        told = sum(found.cost for found in held.values())
        what = (
            "there are no metrics of the server"
            if server is None
            else ("the server does not tell how long requests queue, prefill and decode")
        )
        return {
            "cannot_tell": Found(
                max(0.0, e2e - told), 0.3, f"{what}: of {e2e * 1000:,.3g} ms a request nothing "
                "says how much was queueing, prefill, decode or network",
            )
        }  # fmt: skip
    host = "" if server.stages else ", except that this engine does not tell its host's share"
    slowest, took = max(evidence.split().items(), key=lambda part: part[1], default=("", 0.0))
    if slowest == "queue" and took > limit("queue") * e2e:
        return {
            "cannot_tell": Found(
                took, 0.5, f"{took / e2e * 100:.0f} % of a request's time was queue, and nothing "
                "that is known here to hold requests there shows: a server that waits for whole "
                "batches (--batching static) looks so",
            )
        }  # fmt: skip
    if client is not None and client.breached:
        return {
            "cannot_tell": Found(
                took, 0.5, f"{' and '.join(sorted(client.breached))} broke the promise made of it, "
                f"and nothing that is known here shows why: {took / e2e * 100:.0f} % of a "
                f"request's time was {slowest}, the queue took {server.queue / e2e * 100:.0f} %",
            )
        }  # fmt: skip
    return {
        "none": Found(
            0.0,
            0.9 if server.stages else 0.6,
            f"{took / e2e * 100:.0f} % of a request's time was {slowest}, the queue took "
            f"{server.queue / e2e * 100:.0f} %, and nothing crossed its threshold{host}",
        )
    }


def _missing(evidence: Evidence) -> tuple[str, ...]:
    server = evidence.server
    if server is None:
        return ("There are no metrics of the server: nothing inside it can be seen.",)
    return server.missing


def _notes(evidence: Evidence) -> tuple[str, ...]:
    notes = []
    if evidence.client is not None:
        notes += list(evidence.client.doubts)
    profiled = sum(b - a for a, b in evidence.profile.windows) if evidence.profile else 0.0
    if evidence.server is not None and profiled:
        what = (
            "that time is left out, but not what it took of the server's memory"
            if evidence.profile_left_out
            else "too few requests are left without them, so what the server tells of its own "
            "times, its event loop and its memory has that in it"
        )
        notes.append(f"a profiler was at work for {profiled:.3g} s of the run: {what}")
    disturbed = evidence.disturbed
    if disturbed is not None and disturbed > limit("disturbed"):
        notes.append(
            f"the server's processors were busy with other work: its engine got none in "
            f"{disturbed * 100:.0f} % of the time in which it wanted one, so all its times are "
            "longer than on a quiet machine"
        )
    return tuple(notes)
