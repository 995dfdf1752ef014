"""The schedule account."""

import pytest

from prony_loadgen.account import Sending, account


def sent(intended: float, lag: float | None) -> Sending:
    return Sending(intended, None if lag is None else intended + lag)


def counts(
    records: list[Sending], window: tuple[float, float], schedule: list[float]
) -> tuple[int, int, int, int]:
    told = account(records, window, schedule=schedule, planned=None)
    return told["offered"], told["on_time"], told["late"], told["dropped"]


def test_offered_is_on_time_and_late_and_dropped() -> None:
    records = [sent(1.0, 0.001), sent(1.1, 0.02), sent(1.2, 0.009)]
    assert counts(records, (1.0, 2.0), [1.0, 1.1, 1.2, 1.3]) == (4, 2, 1, 1)


def test_warm_up_and_what_was_not_due_yet_are_left_out() -> None:
    records = [sent(0.5, 0.5), sent(1.5, 0.0)]
    assert counts(records, (1.0, 2.0), [0.5, 1.5, 2.5]) == (1, 1, 0, 0)


def test_a_request_that_the_target_refused_was_still_offered_on_time() -> None:
    assert counts([sent(1.0, None)], (0.0, 2.0), [1.0]) == (1, 1, 0, 0)


def test_a_closed_loop_drops_nothing_and_has_no_asked_rate() -> None:
    told = account([sent(0.5, 0.0)], (0.0, 2.0), schedule=None, planned=None)
    assert (told["dropped"], told["asked_rate"], told["offered_rate"]) == (0, None, 0.5)


def test_a_client_that_runs_behind_offers_less_than_was_asked() -> None:
    due = [number / 10 for number in range(10)]
    records = [sent(at, at) for at in due]  # twice as slow as it should be
    told = account(records, (0.0, 1.0), schedule=due, planned=10)
    assert told["asked_rate"] == pytest.approx(10)
    assert told["offered_rate"] == pytest.approx(6)
    assert told["send_lag_p50"] == pytest.approx(0.4)
    assert told["send_lag_p99"] == pytest.approx(0.9)


def test_an_empty_window_has_no_rates_and_no_lags() -> None:
    told = account([], (3.0, 3.0), schedule=[], planned=0)
    assert told == {
        "planned": 0,
        "offered": 0,
        "on_time": 0,
        "late": 0,
        "dropped": 0,
        "send_lag_p50": None,
        "send_lag_p99": None,
        "asked_rate": None,
        "offered_rate": None,
    }
