"""When a breach is certain before the end: requests as they finish go in, the moment comes out.

Two ways lead there, and either will do. By evidence: an e-value, which may be looked at after
every request, needs no plan and finds a plain breach of a long run soon. By counting: so many of
the planned requests are bad that the bound at the end lies above the limit even if every request
still to come is good. Both count independent requests, as `effective` sees them in the bursts so
far.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from prony_loadgen.record import RequestRecord
from prony_slo import eprocess, intervals
from prony_slo.counting import is_bad
from prony_slo.effective import FEWEST, inflation
from prony_slo.promise import Condition

# The share of the objective's own error (1 - confidence) that looking early may add.
ERROR = 0.2
# Between two looks the number of requests grows by so much, so that looking stays cheap.
STEP = 1.01


class Breach:
    """Watches one objective: "at most `limit` of the requests miss `conditions`"."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        limit: float,
        confidence: float,
        planned: int | None = None,
    ) -> None:
        self.bad = 0
        self.how: str | None = None  # why it is certain, once it is
        self._conditions, self._limit, self._confidence = conditions, limit, confidence
        self._planned = planned
        self._enough = intervals.certain_breach(limit, confidence, planned) if planned else None
        self._seen: list[tuple[float, bool]] = []
        self._next_look = FEWEST

    def add(self, record: RequestRecord) -> bool:
        """Counts one finished request; True where it makes a breach certain."""
        bad = is_bad(record, self._conditions)
        if record.outcome == "incomplete" and not bad:
            return False  # not finished: it may still turn out either way
        self._seen.append((record.intended, bad))
        self.bad += bad
        if bad and self.how is None:
            self.how = self._look()
        return self.how is not None

    def _look(self) -> str | None:
        n, limit = len(self._seen), self._limit
        counted = self._enough is not None and self.bad >= self._enough
        alpha = ERROR * (1 - self._confidence)
        evident = n >= self._next_look and eprocess.certain(self.bad, n, limit, alpha)
        if not counted and not evident:
            return None
        worth = inflation([self._in_order()], self._confidence)
        self._next_look = max(self._next_look, int(n * STEP) + 1)
        if counted and self._planned is not None:
            planned = self._planned / worth
            if intervals.lower(self.bad / worth, planned, self._confidence) > limit:
                return f"{self.bad:,} of {self._planned:,} requests are bad already"
        if evident and eprocess.certain(self.bad / worth, n / worth, limit, alpha):
            return f"{self.bad:,} of the first {n:,} requests are bad"
        return None

    def _in_order(self) -> np.ndarray:
        self._seen.sort(key=lambda one: one[0])
        return np.array([bad for _, bad in self._seen], dtype=bool)


def evidence_at(
    records: Iterable[RequestRecord],
    conditions: Sequence[Condition],
    limit: float,
    confidence: float,
) -> int | None:
    """After how many of the records, in the order they ended, a breach was evident; None: never."""
    breach = Breach(conditions, limit, confidence)
    for n, record in enumerate(records, start=1):
        if breach.add(record):
            return n
    return None
