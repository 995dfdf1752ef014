"""Does it still answer right: fixed prompts are asked one by one, and their records come out.

They are asked before and after the load, outside of what is measured, so that they cost the figures
nothing and show what the load did to the answers.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from prony_loadgen.client import Client
from prony_loadgen.ledger import Ledger
from prony_loadgen.prompt_file import Row, read_prompts
from prony_loadgen.quality import inspected
from prony_loadgen.record import RequestRecord
from prony_loadgen.settings import Settings
from prony_loadgen.summary import CHECK_CLASS

When = Literal["before", "after"]

OUTPUT_TOKENS = 32  # where a row does not say
PATIENCE = 2  # times the limit of one request is what all of them together may take


class Checks:
    """The checks of one run, asked by whoever makes the whole of it."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        """Asks what is asked before the load; takes until all is answered."""
        self._settings, self._ledger = settings, ledger
        self._began = time.monotonic()
        self._before = ask_checks(settings, "before", self._began)

    def begun(self, origin: float) -> None:
        """The load's clock is set: what was asked lies before its zero."""
        for record in self._before:
            self._ledger.add(moved(record, self._began - origin))

    def ended(self, origin: float) -> None:
        """The load is over: asks again."""
        if not self._before:
            return
        after = ask_checks(self._settings, "after", origin)
        for record in after:
            self._ledger.add(record)
        self._ledger.more["checks"] = check_facts(self._before, after)


def ask_checks(settings: Settings, when: When, origin: float) -> list[RequestRecord]:
    """The records of all checks of the scenario, with times from `origin`; none if it has none."""
    scenario = settings.scenario
    if scenario is None or scenario.checks is None:
        return []
    rows = read_prompts(Path(scenario.checks), dialect=scenario.dialect)
    # A server that hangs is not waited for anew by each of them.
    until = time.monotonic() + PATIENCE * settings.target.timeouts.total
    return [
        _asked(settings, row, f"{when}-{n:03d}", when, origin, until) for n, row in enumerate(rows)
    ]


def moved(record: RequestRecord, seconds: float) -> RequestRecord:
    """The record on a clock whose zero was `seconds` earlier."""

    def at(moment: float | None) -> float | None:
        return None if moment is None else moment + seconds

    return replace(
        record,
        intended=record.intended + seconds,
        ended=record.ended + seconds,
        sent=at(record.sent),
        headers=at(record.headers),
        connected=at(record.connected),
        arrivals=tuple(arrival._replace(at=arrival.at + seconds) for arrival in record.arrivals),
    )


def check_facts(before: Sequence[RequestRecord], after: Sequence[RequestRecord]) -> dict[str, Any]:
    """What run.json says of them; `changed` is how many answers read otherwise after the load."""
    pairs = zip(before, after, strict=False)
    changed = sum(a.ok and b.ok and a.text != b.text for a, b in pairs)
    return {"before": _counts(before), "after": _counts(after), "changed": changed}


def _counts(records: Sequence[RequestRecord]) -> dict[str, int]:
    return {
        "asked": len(records),
        "failed": sum(not r.ok for r in records),
        "match": sum("match" in r.flags for r in records),
        "mismatch": sum("mismatch" in r.flags for r in records),
        "repetition": sum("repetition" in r.flags for r in records),
    }


def _asked(
    settings: Settings, row: Row, id: str, when: When, origin: float, until: float
) -> RequestRecord:
    records: list[RequestRecord] = []
    client = Client(settings.target, origin=origin, on_record=records.append)
    client.start()
    client.submit(
        settings.form.request(
            row.prompt,
            id=id,
            cls=f"{CHECK_CLASS}{when}",
            intended=time.monotonic(),
            max_tokens=row.output_tokens or OUTPUT_TOKENS,
            forced=False,
            needs_text=True,
        )
    )
    timeouts = settings.target.timeouts
    left = min(timeouts.total, max(0.0, until - time.monotonic()))
    client.close(drain=timeouts.connect + left)
    return inspected(records[0], row.expect, natural=True)
