"""Pages of all kinds of servers, right ones and wrong ones: what can be read of them is read."""

import time

import pytest

from prony_loadgen.exposition import read_page


def value(text: str, name: str) -> float:
    ((_, found),) = read_page(text).samples[name]
    return found


def test_g07_names_with_colons_and_quoted_utf_8_names_are_names() -> None:
    page = read_page('vllm:x{model_name="a"} 1\n{"gen_ai.y",model="b"} 2\n{"gen_ai.z"} 3\n')
    assert page.samples["vllm:x"] == [({"model_name": "a"}, 1.0)]
    assert page.samples["gen_ai.y"] == [({"model": "b"}, 2.0)]
    assert page.samples["gen_ai.z"] == [({}, 3.0)]
    assert page.skipped == 0


def test_g15_a_page_of_another_server_with_everything_odd_in_it_gives_what_it_has() -> None:
    text = "\n".join(
        [
            "# TYPE a summary",
            'a{quantile="0.5"} 1',
            "a_sum 3",
            "a_count 2",
            "# TYPE h histogram",
            'h_bucket{le="1"} 5',  # no +Inf
            "h_sum 1e+09",
            "h_count 5",
            "h_created 1.7e9",
            "# TYPE h histogram",  # twice
            "g NaN",
            "i +Inf",
            "t 4 1700000000000",  # with a time
            'e_bucket{le="2"} 7 # {trace_id="abc"} 0.5 1.7',  # with an exemplar
            "this is no sample at all",
            'broken{le="1} 3',
            "word abc",
            "# EOF",
        ]
    )
    page = read_page(text)
    assert page.skipped == 3
    assert value(text, "h_sum") == 1e9 and value(text, "t") == 4
    assert page.samples["e_bucket"] == [({"le": "2"}, 7.0)]
    assert page.samples["i"][0][1] == float("inf")


def test_of_a_series_that_comes_twice_the_last_one_counts() -> None:
    assert value('a{x="1"} 1\na{x="1"} 2\n', "a") == 2


def test_labels_may_hold_what_separates_labels() -> None:
    ((labels, _),) = read_page('a{x="b=\\"c\\", {d}", y="e\\\\f"} 1').samples["a"]
    assert labels == {"x": 'b="c", {d}', "y": "e\\f"}


def test_only_wanted_names_are_kept() -> None:
    assert set(read_page("a 1\nb 2\n", {"b"}).samples) == {"b"}


@pytest.mark.parametrize("text", ["", "\n\n", "<html>", "\x00\xff", "{" * 50, '{"' + "a" * 5000])
def test_what_is_no_page_at_all_is_no_error(text: str) -> None:
    assert read_page(text).samples == {}


def test_a_line_made_to_be_slow_is_not() -> None:
    start = time.process_time()
    read_page("a{" + 'x="' * 20_000 + "\n" + "a " * 20_000)
    assert time.process_time() - start < 5  # a quadratic one takes minutes
