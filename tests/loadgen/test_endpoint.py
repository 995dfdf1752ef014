"""Whom to talk to."""

import pytest
from tests.loadgen.fake_server import FakeServer

from prony_loadgen.endpoint import find_endpoint, reach
from prony_loadgen.scenario import Talk, talk_from
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import Target, TargetError


def find(talk: Talk, url: str | None = None, key: str | None = None, **environ: str) -> Target:
    return find_endpoint(talk, url, key, environ)


def test_the_option_wins_over_the_scenario_and_that_over_the_environment() -> None:
    talk = Talk(target="http://scenario:1")
    assert find(talk, "http://option:1", OPENAI_BASE_URL="http://env:1").host == "option"
    assert find(talk, OPENAI_BASE_URL="http://env:1").host == "scenario"
    assert find(Talk(), OPENAI_BASE_URL="http://env:1").host == "env"


def test_without_a_target_the_error_says_how_to_name_one() -> None:
    with pytest.raises(TargetError, match="no target: name one by --target"):
        find(Talk())


def test_the_key_comes_from_the_environment() -> None:
    key = ("Authorization", "Bearer k")
    assert find(Talk(), "http://a", OPENAI_API_KEY="k").headers == (key,)
    assert find(Talk(), "http://a", "MINE", MINE="k", OPENAI_API_KEY="other").headers == (key,)
    assert find(Talk(), "http://a").headers == ()
    with pytest.raises(TargetError, match="--api-key-env: the environment variable MINE is not"):
        find(Talk(), "http://a", "MINE", OPENAI_API_KEY="other")


def test_headers_are_filled_from_the_environment() -> None:
    talk = talk_from({"headers": {"X-Key": "a-${KEY}-${KEY}", "X-Plain": "$5"}})
    assert find(talk, "http://a", KEY="k").headers == (("X-Key", "a-k-k"), ("X-Plain", "$5"))
    with pytest.raises(FileError, match="header X-Key: the environment variable KEY is not set"):
        find(talk, "http://a")


def test_timeouts_are_the_scenarios() -> None:
    talk = talk_from({"timeouts": {"total": "9s", "first_token": "500ms"}})
    timeouts = find(talk, "http://a").timeouts
    assert (timeouts.connect, timeouts.first_token, timeouts.total) == (5.0, 0.5, 9.0)


def test_a_look_at_the_target_gives_the_only_model() -> None:
    with FakeServer() as server:
        for probing in (True, False):
            target, model = reach(Talk(), server.url, None, probing=probing)
            assert (target.base_path, model) == ("/v1", "fake")
        assert reach(Talk(model="mine"), server.url, None, probing=False)[1] == "mine"


def test_a_target_that_is_not_there_is_named() -> None:
    with FakeServer() as server:
        url = server.url
    with pytest.raises(TargetError, match=f"cannot reach {url}"):
        reach(Talk(), url, None)
