"""What is shown while a run goes on."""

import io

from prony_loadgen.live import RECENT
from prony_loadgen.progress import Progress


def test_a_terminal_sees_one_line_rewritten() -> None:
    stream = io.StringIO()
    progress = Progress(stream, rewrite=True)
    progress.say("1 s")
    progress.say("2 s")
    progress.note("interrupted")
    progress.end()
    assert stream.getvalue() == "\r1 s\x1b[K\r2 s\x1b[K\ninterrupted\n"


def test_a_log_gets_a_line_as_often_as_a_line_looks_back() -> None:
    assert RECENT == 5
    stream = io.StringIO()
    progress = Progress(stream)
    for second in range(1, 14):
        progress.say(f"{second} s")
    progress.end()
    assert stream.getvalue() == "5 s\n10 s\n"


def test_quiet_says_nothing() -> None:
    progress = Progress(None)
    progress.say("1 s")
    progress.note("interrupted")
    progress.end()
