"""Records on disk, while a run goes on."""

import gzip
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prony_loadgen.folder import RunFolder
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.recorder import Recorder


def record(number: int) -> RequestRecord:
    return RequestRecord(
        id=f"{number:06d}",
        cls="chat",
        intended=float(number),
        sent=number + 0.001,
        headers=number + 0.01,
        arrivals=(Arrival(number + 0.02, 1, "text"), Arrival(number + 0.03, 1, "text")),
        ended=number + 0.04,
        outcome="ok",
        output_tokens=2,
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The disk is full after `size` bytes, as far as this process can see."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_records_come_back_as_they_went_in(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder.requests)
    records = [record(number) for number in range(100)]
    for each in records:
        recorder.add(each)
    recorder.close()
    assert list(folder.records()) == records
    assert recorder.written == 100
    assert len(gzip.decompress(folder.requests.read_bytes()).splitlines()) == 100


def test_what_is_a_second_old_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    folder, clock = RunFolder(tmp_path), Clock()
    recorder = Recorder(folder.requests, clock)
    recorder.add(record(1))
    assert list(folder.records()) == []
    clock.now = 1.0
    recorder.flush_if_due()
    assert list(folder.records()) == [record(1)]
    clock.now = 1.5
    recorder.add(record(2))
    clock.now = 2.1
    recorder.add(record(3))
    assert list(folder.records()) == [record(1), record(2), record(3)]
    recorder.close()


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.gz")
    recorder.close()
    recorder.close()


def test_a_full_disk_is_an_error_and_what_was_written_stays_readable(tmp_path: Path) -> None:
    folder, clock = RunFolder(tmp_path), Clock()
    recorder = Recorder(folder.requests, clock)
    with files_no_larger_than(2000), pytest.raises(OSError, match="File too large"):
        for number in range(10_000):
            clock.now = float(number)
            recorder.add(record(number))
    recorder.close()
    kept = list(folder.records())
    assert len(kept) > 5
    assert kept == [record(number) for number in range(len(kept))]
