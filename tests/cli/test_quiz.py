"""`prony quiz`: a hidden fault, a load, a question; nothing is left running, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.loadgen.locust_process import Process, nothing_is_left_running

from prony.__main__ import main
from prony.diagnosis.advice import TEXTS
from prony.quiz import CHOICES, QUESTIONS, chosen, drawn
from prony_server.faults import parse

SEED_OF = {drawn(seed)[0]: seed for seed in range(200)}


def test_a_seed_hides_one_cause_and_offers_it_among_others_once() -> None:
    for seed in range(50):
        cause, choices = drawn(seed)
        assert (cause, choices) == drawn(seed)
        assert choices.count(cause) == 1 and len(set(choices)) == CHOICES


def test_every_cause_comes_up_is_a_verdict_and_a_fault_that_the_server_knows() -> None:
    assert set(SEED_OF) == set(QUESTIONS)
    for cause, question in QUESTIONS.items():
        assert TEXTS[cause].title
        assert question.fault is None or parse(question.fault)


def test_the_right_answer_is_at_every_place() -> None:
    places = {choices.index(cause) for cause, choices in map(drawn, range(100))}
    assert places == set(range(CHOICES))


@pytest.mark.parametrize(
    ("text", "meant"),
    [("2\n", "b"), (" b ", "b"), ("0", None), ("3", None), ("-1", None), ("²", None), ("", None),
     ("9" * 5000, None)],
)  # fmt: skip
def test_an_answer_is_a_number_or_a_name(text: str, meant: str | None) -> None:
    assert chosen(text, ("a", "b")) == meant


@pytest.mark.parametrize("options", [["--answer", "gremlins"], ["--seconds", "0"], ["--seed", "x"]])
def test_what_cannot_be_asked_is_told_before_anything_is_started(options: list[str]) -> None:
    try:
        code = main(["quiz", *options])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2


def test_the_right_answer_on_standard_input_is_right_and_the_diagnosis_follows() -> None:
    seed = SEED_OF["batch_slots"]
    number = drawn(seed)[1].index("batch_slots") + 1
    done = subprocess.run(
        [sys.executable, "-m", "prony", "quiz", "--seed", str(seed), "--seconds", "3"],
        input=f"the tokenizer?\n{number}\n", capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    before, asked, after = said.partition("What holds it back?")
    assert "requests/s" in before and "the clients saw: TTFT" in before
    # Nothing gives it away before it is asked.
    assert not any(text.title in before for text in TEXTS.values()) and "slots" not in before
    assert asked and after.count(f"1 to {CHOICES}: ") == 2
    assert f"Right: it is {TEXTS['batch_slots'].title}." in after
    assert "--inject slots=1: so few sequences may run at a time." in after
    assert "A mean request took" in after and "surer with" in after
    assert f"prony quiz --seed {seed}" in after


def test_ctrl_c_under_load_ends_it_with_nothing_left_running(tmp_path: Path) -> None:
    with nothing_is_left_running(), nothing_is_left_of(tmp_path):
        quiz = Process(
            [sys.executable, "-m", "prony", "quiz", "--seconds", "60"], tmp_path, QUIZ=str(tmp_path)
        )
        quiz.until(lambda: "it is under load" in quiz.said)
        assert len(of_this_quiz(tmp_path)) >= 2, "its server and its load"
        quiz.process.send_signal(signal.SIGINT)
        assert quiz.end() == 0, quiz.said
        assert "left; the server is stopped" in quiz.said and "Traceback" not in quiz.said
        assert of_this_quiz(tmp_path) == []


@contextmanager
def nothing_is_left_of(mark: Path) -> Iterator[None]:
    """Where the test fails, too: what a quiz starts is in sessions of its own."""
    try:
        yield
    finally:
        for process in of_this_quiz(mark):
            os.kill(process, signal.SIGKILL)


def of_this_quiz(mark: Path) -> list[int]:
    """The processes that were started with the mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.fsencode(mark) in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return found
