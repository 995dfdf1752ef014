"""A tally counts as prometheus_client's histogram does."""

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily

from prony_server.tally import Tally


def test_a_tally_tells_what_a_histogram_of_the_same_values_tells() -> None:
    edges, values = (0.5, 1.0, 4.0), (0.1, 0.5, 0.6, 1.0, 3.0, 9.0, 9.0)
    histogram = Histogram("a", "text", buckets=edges, registry=CollectorRegistry())
    tally = Tally(edges)
    for value in values:
        histogram.observe(value)
        tally.observe(value)
    family = HistogramMetricFamily("a", "text")
    family.add_metric((), *tally.read())
    (expected,) = histogram.collect()
    told = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert told == {
        (s.name, s.labels.get("le")): s.value for s in expected.samples if "created" not in s.name
    }


def test_a_value_can_count_several_times() -> None:
    tally = Tally((1, 2))
    tally.observe(1.5, 3)
    assert tally.read() == ([("1.0", 0.0), ("2.0", 3.0), ("+Inf", 3.0)], 4.5)
