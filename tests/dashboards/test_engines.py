"""The map of engines: each concept has a metric that a page holds, or words for why not."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prony_dashboards.engines import CONCEPTS, ENGINES
from prony_dashboards.lint import selected_names
from prony_dashboards.pages import at, page

WRITTEN = [name for name in ENGINES if name != "prony"]


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_each_concept_or_says_why_not(name: str) -> None:
    engine = ENGINES[name]
    assert engine.sources.keys() | engine.absent.keys() == set(CONCEPTS)
    assert not engine.sources.keys() & engine.absent.keys()
    assert all(said.endswith(".") for said in engine.absent.values())


@pytest.mark.parametrize("name", WRITTEN)
def test_an_engines_page_holds_every_name_of_the_map(name: str) -> None:
    samples = {line.split("{")[0].split(" ")[0] for line in page(name).splitlines()}
    missing = {n for n in ENGINES[name].names() if n not in samples and f"{n}_count" not in samples}
    assert missing == set()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_valid_and_its_buckets_rise_to_its_count(name: str) -> None:
    for family in text_string_to_metric_families(at(page(name), 10)):
        counts = [s.value for s in family.samples if s.name.endswith("_count")]
        tops = [s.value for s in family.samples if s.labels.get("le") == "+Inf"]
        assert family.type != "histogram" or counts == tops


def test_a_pages_counters_rise_and_its_gauges_stay() -> None:
    text = "# TYPE a counter\na_total 2\n# TYPE b gauge\nb 3\n# TYPE c histogram\n"
    text += 'c_bucket{le="+Inf"} 4\nc_sum 5\nc_count 4\n'
    lines = at(text, 10).splitlines()
    assert lines[1] == "a_total 20.000000"
    assert lines[3] == "b 3"
    assert lines[5:] == ['c_bucket{le="+Inf"} 40.000000', "c_sum 50.000000", "c_count 40.000000"]


def test_a_metric_without_the_models_label_is_not_asked_for_a_model() -> None:
    prony, vllm = ENGINES["prony"], ENGINES["vllm"]
    assert prony.level("running") == 'sum(prony_requests_running{instance=~"$instance"})'
    assert vllm.level("running") == (
        'sum(vllm:num_requests_running{model_name=~"$model", instance=~"$instance"})'
    )


def test_a_share_is_a_gauge_or_a_counter_over_the_whole_it_is_part_of() -> None:
    sglang, vllm = ENGINES["sglang"], ENGINES["vllm"]
    assert sglang.share("prefix_hits").startswith("avg(sglang:cache_hit_rate{")
    assert selected_names(vllm.share("prefix_hits")) == {
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
    }
    # The whole is every request; only the part is of those that failed.
    part, whole = vllm.share("failures").split(" / ")
    assert 'finished_reason="error"' in part and "finished_reason" not in whole
    # The scheduler's idle time is no part of its loop's busy time.
    assert 'stage="idle"' in sglang.share("host_share")
