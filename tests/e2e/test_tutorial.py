"""The lessons of docs/tutorial: their commands are run as they stand there, their claims looked at.

A `**bold**` word is a claim: where its table compares two runs, the figure must go the way that
the row says; elsewhere it must be in what the lesson's commands print. Figures that a busy machine
changes are not bold. The servers run in turn in one process; the other commands as people type
them, with `--once` added to `prony watch` and their URL in place of the lessons'.
"""

import argparse
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.e2e.servers import serving
from tests.loadgen.locust_process import Process, nothing_is_left_running
from tests.starting import ROOT, run_program

from prony.serve import configure
from prony_loadgen.folder import RunFolder
from prony_server.in_turn import InTurn

COURSE = ROOT / "docs/tutorial"
LESSONS = sorted(COURSE.glob("[0-9]-*.md"))
URL = "http://127.0.0.1:8000"
JUDGED = (0, 1, 3, 4)  # of a run: all but a usage error
MOST_COMMANDS = 3


@cache
def text_of(lesson: Path) -> str:
    return lesson.read_text(encoding="utf-8")


def commands(lesson: Path) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text_of(lesson), re.M | re.S)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@dataclass(frozen=True, slots=True)
class Claim:
    """A bold word; with two runs and a change where it is the figure of a table of these."""

    word: str
    runs: tuple[str, ...] = ()
    change: str = ""


def claims(lesson: Path) -> Iterator[Claim]:
    runs: tuple[str, ...] = ()
    rest = []
    for line in text_of(lesson).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "→" in cells[0]:
            runs = tuple(re.findall(r"`(runs/[\w-]+)`", cells[0]))
        elif not line.startswith("|"):
            runs = ()
        if runs and (bold := re.fullmatch(r"\*\*(.+)\*\*", cells[0])):
            yield Claim(bold[1], runs, cells[1].split()[0].strip(":"))
        else:
            rest.append(line)
    for word in re.findall(r"\*\*(.+?)\*\*", "\n".join(rest), re.S):
        yield Claim(" ".join(word.split()).strip("`"))


@dataclass
class Course:
    """The lessons that were taken, in one folder, with one process for their servers."""

    folder: Path
    servers: InTurn
    said: dict[Path, str] = field(default_factory=dict)

    def take(self, lesson: Path) -> str:
        """What the lesson's commands print; those that it builds on are taken before it."""
        if lesson not in self.said:
            for other in LESSONS:
                if other != lesson and made_by(other) & used_by(lesson):
                    self.take(other)
            with ExitStack() as stack:
                self.said[lesson] = self._commands(commands(lesson), stack)
        return self.said[lesson]

    def _commands(self, lines: Sequence[Sequence[str]], stack: ExitStack) -> str:
        url, said, load = "", [], None
        for line in lines:
            words = [word.replace(URL, url) for word in line]
            if words[:2] == ["prony", "serve"]:
                url = self._serve(words[2:], stack)
            elif words[-1] == "&":
                stack.enter_context(nothing_is_left_running())
                load = Process([sys.executable, "-m", *words[:-1]], self.folder, "load")
            elif words[:2] == ["prony", "watch"]:
                assert load is not None
                said.append(self._watch(words, load))
            else:
                done = run_program(*words, cwd=self.folder)
                expected = JUDGED if words[1] == "run" else (0,)
                assert done.returncode in expected, (words, done.stdout + done.stderr)
                said.append(done.stdout + done.stderr)
        if load is not None:
            said.append(self._look_at_pages(url))
            load.process.send_signal(signal.SIGINT)  # nobody watches any more
            assert load.end() in JUDGED, load.said
        return " ".join("".join(said).split())

    def _serve(self, options: Sequence[str], stack: ExitStack) -> str:
        parser = argparse.ArgumentParser(exit_on_error=False)
        configure(parser)
        asked = vars(parser.parse_args(options))
        if asked.pop("debug_traces"):  # what is no setting of the server, but of `prony serve`
            return stack.enter_context(serving(*options))
        del asked["port"], asked["traces"]
        if asked["profile_dir"] is not None:
            asked["profile_dir"] = str(self.folder / asked["profile_dir"])
        asked["inject"] = [str(fault) for fault in asked["inject"] or ()]
        return self.servers.start(**{name: v for name, v in asked.items() if v is not None})

    def _watch(self, words: Sequence[str], load: Process) -> str:
        """Pages while the load runs, until one shows all that the lesson speaks of."""
        wanted = [claim.word for claim in claims(COURSE / "7-monitor.md")]
        page = ""
        while load.process.poll() is None and not all(word in page for word in wanted):
            done = run_program(*words, "--once", cwd=self.folder)
            assert done.returncode == 0, done.stderr
            page = done.stdout
        return page

    def _look_at_pages(self, url: str) -> str:
        """The pages that the lesson names, with what it says is on them."""
        text = text_of(COURSE / "7-monitor.md")
        for page in re.findall(rf"<{URL}(.+?)>", text):
            with urlopen(url + page, timeout=60) as answer:
                body = answer.read().decode()
            if page == "/metrics":
                for name in re.findall(r"`(prony_\w+)`", text):
                    assert f"\n{name}" in body
        return ""


def made_by(lesson: Path) -> set[str]:
    return {w for line in commands(lesson) for at, w in enumerate(line) if line[at - 1] == "--out"}


def used_by(lesson: Path) -> set[str]:
    named = {word for line in commands(lesson) for word in line if word.startswith("runs/")}
    return (named | {run for claim in claims(lesson) for run in claim.runs}) - made_by(lesson)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    folder = tmp_path_factory.mktemp("course")
    (folder / "docs/tutorial").mkdir(parents=True)
    shutil.copy(COURSE / "users.yaml", folder / "docs/tutorial")
    with InTurn() as servers:
        yield Course(folder, servers)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_the_commands_of_a_lesson_run_and_change_what_it_says(lesson: Path, course: Course) -> None:
    said = course.take(lesson)
    seen = list(claims(lesson))
    assert seen, "a lesson that claims nothing"
    for claim in seen:
        if not claim.runs:
            assert claim.word in said, claim
            continue
        before, after = (figure(course.folder / run, claim.word) for run in claim.runs)
        assert {"rises": after > before, "falls": after < before, "none": after == 0}[
            claim.change
        ], (claim, before, after)


def figure(run: Path, name: str) -> float:
    """A figure of a run that does not depend on how fast the machine is."""
    summary = RunFolder(run).read_run()["summary"]
    if name == "failed requests":
        return float(sum(not record.ok for record in RunFolder(run).records()))
    assert name == "TTFT / E2E"
    ratio: float = summary["ttft"]["ok"]["mean"] / summary["e2e"]["ok"]["mean"]
    return ratio


def test_int8_makes_the_weights_smaller_as_lesson_6_says(course: Course) -> None:
    table = course.take(COURSE / "6-int8.md")
    sizes = [re.search(rf"{row} ([\d.]+) ([\d.]+) ", table) for row in ("as it is", "int8")]
    whole, small = (float(found[2]) for found in sizes if found)
    assert whole == 1.0 and small < 0.5


def test_the_course_has_eight_lessons_of_at_most_three_commands_and_an_index_of_them() -> None:
    assert len(LESSONS) == 8
    index = (COURSE / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((\d-[\w-]+\.md)\)", index) == [lesson.name for lesson in LESSONS]
    for lesson in LESSONS:
        assert 1 <= len(commands(lesson)) <= MOST_COMMANDS, lesson
        assert all(line[0] == "prony" for line in commands(lesson)), lesson


def test_every_link_of_the_course_leads_somewhere() -> None:
    for page in COURSE.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert (COURSE / link).exists(), (page.name, link)
