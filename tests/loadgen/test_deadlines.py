"""Time limits: when they end, and how late one may look at them."""

import math

from prony_loadgen.deadlines import Alarm, TimeLimit


def test_no_limit_ends_before_the_alarm_and_the_alarm_is_never_late() -> None:
    alarm = Alarm()
    connect, between = TimeLimit[str](5.0, alarm), TimeLimit[str](0.5, alarm)
    assert alarm.at == math.inf
    connect.add("a", 1.0)
    assert alarm.at == 6.0
    between.restart("a", 2.0)
    assert alarm.at == 2.5
    # A token came: the alarm still rings for the old end, when nothing is over.
    between.restart("a", 2.4)
    assert alarm.at == 2.5 and between.over(2.5) == [] and between.next() == 2.9
    assert between.over(2.9) == ["a"]


def test_a_limit_that_runs_is_not_begun_again() -> None:
    limit = TimeLimit[str](1.0, Alarm())
    limit.add("a", 1.0)
    limit.add("a", 1.5)
    assert limit.next() == 2.0 and limit.over(1.9) == []
    limit.discard("a")
    assert limit.next() == math.inf


def test_none_is_no_limit() -> None:
    alarm = Alarm()
    TimeLimit[str](None, alarm).add("a", 1.0)
    assert alarm.at == math.inf
