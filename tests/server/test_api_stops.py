"""Stop strings in pieces: the same text whatever the pieces, and never a part of a stop string."""

import random

import pytest

from prony_server.stops import StopStrings


def said(pieces: list[str], *stops: str, include: bool = False) -> tuple[str, bool]:
    """What goes out, and whether a stop string was found."""
    matcher, out = StopStrings(stops, include), ""
    for piece in pieces:
        out += matcher.feed(piece, heed=True)
        if matcher.found:
            return out, True
    return out + matcher.flush(), False


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("fooENDOFx", ["ENDOF"], "foo"),
        ("fooENDOFx", ["END!"], "fooENDOFx"),
        ("ababac", ["abac"], "ab"),  # begins again inside its own beginning
        ("xabcd", ["abcd", "bc"], "xa"),  # the first to be complete
        ("xabc", ["bc", "abc"], "x"),  # complete at once: the longest
        ("aaaab", ["aab"], "aa"),
        ("", ["a"], ""),
        ("aaa", ["a"], ""),
    ],
)
def test_v08_where_the_pieces_end_changes_nothing(
    text: str, stops: list[str], expected: str
) -> None:
    found = expected != text
    rng = random.Random(1)
    assert said([text], *stops) == said(list(text), *stops) == (expected, found)
    for _ in range(50):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(3))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert said(pieces, *stops) == (expected, found)


def test_v08_random_texts_end_where_a_search_of_the_whole_text_says() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(12)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(3)]
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        expected = text[: min(ends)[1]] if ends else text
        included = text[: min(ends)[0]] if ends else text
        size = rng.randint(1, 4)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert said(pieces, *stops) == (expected, bool(ends))
        assert said(pieces, *stops, include=True) == (included, bool(ends))


def test_v08_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["ENDOF"], include=False)
    assert [matcher.feed(piece, True) for piece in ("fooE", "N", "E", "ND", "x")] == [
        *("foo", "", "EN", "", "ENDx"),
    ]


def test_v08_a_stop_string_that_is_not_heeded_goes_out_and_the_next_one_counts() -> None:
    matcher = StopStrings(["END"], include=False)
    assert matcher.feed("aEN", heed=False) == "a"
    assert matcher.feed("Db", heed=False) == "ENDb"
    assert matcher.feed("EN", heed=False) == ""
    assert matcher.feed("D", heed=True) == "" and matcher.found
    # Complete before it was to be heeded, though more of a longer one was awaited.
    matcher = StopStrings(["xENDy", "END"], include=False)
    assert matcher.feed("xEND", heed=False) == ""
    assert matcher.feed("z", heed=True) == "xENDz" and not matcher.found
