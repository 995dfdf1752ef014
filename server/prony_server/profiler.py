"""A running server is asked for a capture; files that profilers' viewers open are what it leaves.

torch.profiler is started and stopped in the engine's thread, between two steps, and lasts for a
bounded number of them; py-spy looks at the whole process from outside, for bounded seconds. Between
captures nothing of this runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from prony_server.engine import Engine, Step

logger = logging.getLogger(__name__)

Kind = Literal["torch", "py-spy"]

STEPS = 64  # of torch.profiler where nobody says how many: some megabytes
MOST_STEPS = 2000
SECONDS, MOST_SECONDS = 10.0, 60.0  # of a capture of either kind, steps or not
TABLE_ROWS = 200
SAMPLES = 100  # a second, by py-spy
# For an engine in the middle of a long step, and for py-spy to read the interpreter's symbols.
PATIENCE = 60.0

_NAME = re.compile(r"\d{8}T\d{6}Z-[\w.-]+\.(pt\.trace\.json\.gz|txt|speedscope\.json)", re.ASCII)


class ProfilerError(Exception):
    """A capture that cannot be: one line with the reason and the remedy."""


class AlreadyRunning(Exception):
    """One capture at a time."""


class NotRunning(Exception):
    """There is no capture to stop."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How much to capture. `num_steps` None: as many as torch gets by default; py-spy: any."""

    num_steps: int | None = None
    seconds: float = SECONDS
    prefix: str = "capture"  # of the files' names, after the time
    with_stack: bool = False  # torch only: Python's calls too, which slows every one of them


class Recording(Protocol):
    """One way to look at the engine. `begin` and `end` are called in the engine's thread."""

    def prepare(self) -> None:
        """Any thread, before `begin`: what takes its time. Raises ProfilerError."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def save(self) -> list[Path]:
        """Any thread, after `end`. Raises ProfilerError."""
        ...


@dataclass(slots=True)
class _Capture:
    """The one under way: `finish` is set when it has had its steps or somebody stops it."""

    finish: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[list[str]] | None = None


class Profiler:
    """Captures of one engine, one at a time. Lives on the event loop."""

    def __init__(self, folder: Path, kind: Kind, engine: Engine) -> None:
        self.folder = folder
        self.kind = kind
        self._engine = engine
        self._now: _Capture | None = None
        self._count = 0

    @property
    def running(self) -> bool:
        """Until the files of a capture are written."""
        return self._now is not None

    async def start(self, asked: Asked) -> Asked:
        """Its bounds, once the capture has begun. Raises AlreadyRunning or ProfilerError."""
        if self._now is not None:
            raise AlreadyRunning
        if asked.num_steps is None and self.kind == "torch":
            asked = replace(asked, num_steps=STEPS)
        capture = self._now = _Capture()
        self._count += 1
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{asked.prefix}-{self._count}"
        begun = asyncio.get_running_loop().create_future()
        capture.task = asyncio.create_task(self._run(capture, asked, name, begun))
        # Why one failed that ended by itself is in the log; nobody may be there to be told.
        capture.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait((begun, capture.task), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await capture.task  # raises why it did not begin
        return asked

    async def stop(self) -> list[str]:
        """Ends the capture and returns the names of its files. Raises NotRunning, ProfilerError."""
        if self._now is None or self._now.task is None:
            raise NotRunning
        self._now.finish.set()
        return await asyncio.shield(self._now.task)

    async def close(self) -> None:
        """Ends what still runs and keeps it; to be called while the engine's thread lives."""
        with contextlib.suppress(NotRunning, ProfilerError):
            logger.info("profile kept files=%s", ",".join(await self.stop()))

    def files(self) -> list[tuple[str, int]]:
        """Names and sizes of all captures in the folder, oldest first. Raises ProfilerError."""
        try:
            found = [
                (entry.name, entry.stat().st_size)
                for entry in os.scandir(self.folder)
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        except OSError as error:
            raise ProfilerError(f"the captures cannot be listed: {error}") from error
        return sorted(found)

    def path(self, name: str) -> Path | None:
        """Where a file of `files` lies; None for any other name. Raises ProfilerError."""
        return self.folder / name if name in dict(self.files()) else None

    async def _run(
        self, capture: _Capture, asked: Asked, name: str, begun: asyncio.Future[None]
    ) -> list[str]:
        try:
            make = TorchRecording if self.kind == "torch" else PySpyRecording
            recording: Recording = make(self.folder / name, asked)
            loop = asyncio.get_running_loop()

            def last_step() -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(capture.finish.set)

            stretch = _Stretch(self._engine, recording, asked.num_steps, last_step)
            self._find_folder()
            await asyncio.to_thread(recording.prepare)
            await self._in_engine(stretch.begin)
            began = time.monotonic()
            logger.info("profiling with %s to %s", self.kind, self.folder / name)
            begun.set_result(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(asked.seconds):
                    await capture.finish.wait()
            await self._in_engine(stretch.end)
            seconds = time.monotonic() - began
            files = [file.name for file in await asyncio.to_thread(recording.save)]
            logger.info("profiled for %.2f s: %s", seconds, ", ".join(files))
            return files
        except ProfilerError as error:
            logger.warning("no profile: %s", error)
            raise
        finally:
            self._now = None

    def _find_folder(self) -> None:
        """Makes the folder where somebody has removed it since the start."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProfilerError(f"no capture can be written: {error}") from error

    async def _in_engine(self, call: Callable[[], None]) -> None:
        """Makes the call between two steps; here and now where the engine's thread has gone."""
        from prony_server.engine import EngineStopped

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def told(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def in_thread() -> None:
            problem: BaseException | None = None
            try:
                call()
            except Exception as error:  # the capture's problem, not the engine's
                problem = error
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told, problem)

        try:
            self._engine.between_steps(in_thread)
        except EngineStopped:
            in_thread()
        try:
            async with asyncio.timeout(PATIENCE):
                await done
        except TimeoutError:
            message = f"the engine has not come to the end of a step in {PATIENCE:g} s"
            raise ProfilerError(message) from None
        except Exception as error:
            raise ProfilerError(f"{type(error).__name__}: {error}") from error


class _Stretch:
    """From one end of a step to another: counts the engine's steps in between, in its thread."""

    def __init__(
        self,
        engine: Engine,
        recording: Recording,
        steps: int | None,
        on_last: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._recording = recording
        self._left = steps
        self._on_last = on_last
        self._told: Callable[[Step], None] | None = None
        self._under_way = False

    def begin(self) -> None:
        self._recording.begin()
        self._under_way = True
        if self._left is not None:
            self._told = self._engine.on_step
            self._engine.on_step = self._stepped

    def end(self) -> None:
        """Once; later calls find nothing to end."""
        if not self._under_way:
            return
        self._under_way = False
        if self._left is not None:
            self._engine.on_step = self._told
        self._recording.end()

    def _stepped(self, step: Step) -> None:
        if self._told is not None:
            self._told(step)
        assert self._left is not None
        self._left -= 1
        if not self._left:
            try:
                self.end()
            except Exception:
                logger.exception("a capture could not be ended")
            self._on_last()


class TorchRecording:
    """torch.profiler: every operator and kernel with its times, and their sums as a table."""

    def __init__(self, path: Path, asked: Asked) -> None:
        self._path = path
        self._with_stack = asked.with_stack
        self._profile: Any = None

    def prepare(self) -> None:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities, with_stack=self._with_stack)

    def begin(self) -> None:
        self._profile.start()

    def end(self) -> None:
        self._profile.stop()

    def save(self) -> list[Path]:
        trace = self._path.with_name(self._path.name + ".pt.trace.json.gz")
        table = self._path.with_name(self._path.name + ".txt")
        unfinished = self._path.with_name(f".{self._path.name}.json.gz")
        try:
            self._profile.export_chrome_trace(str(unfinished))
            averages = self._profile.key_averages()
            order = "self_cpu_time_total"
            if any(getattr(each, "self_device_time_total", 0) for each in averages):
                order = "self_device_time_total"
            table.write_text(averages.table(sort_by=order, row_limit=TABLE_ROWS))
            unfinished.replace(trace)
        except (OSError, RuntimeError) as error:
            raise ProfilerError(f"the capture cannot be written: {error}") from error
        finally:
            self._profile = None
            with contextlib.suppress(OSError):
                unfinished.unlink()
        return [trace, table]


class PySpyRecording:
    """py-spy: which Python function each thread is in, a hundred times a second."""

    def __init__(self, path: Path, asked: Asked, program: Path | None = None) -> None:
        self._program = program
        self._path = path
        self._seconds = asked.seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unfinished = path.with_name(f".{path.name}.speedscope.json")

    def prepare(self) -> None:
        """Starts py-spy and waits until it samples or gives up."""
        _let_trace(_ANYBODY)
        self._process = subprocess.Popen(
            [
                str(self._program or py_spy()),
                *("record", "--pid", str(os.getpid()), "--format", "speedscope", "--threads"),
                *("--rate", str(SAMPLES), "--duration", str(int(self._seconds) + 1)),
                *("--output", str(self._unfinished)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        _let_trace(self._process.pid)
        assert self._process.stdout is not None
        # Silence until it has read the interpreter's symbols, then a line: all is well, or why not.
        said = self._process.stdout.readline()
        if b"Sampling" not in said:
            said += self._process.communicate()[0]
            raise ProfilerError(_refusal(said.decode(errors="replace")))

    def begin(self) -> None:
        pass

    def end(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def save(self) -> list[Path]:
        assert self._process is not None
        try:
            said, _ = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        if not self._unfinished.exists():
            raise ProfilerError(_refusal(said.decode(errors="replace")))
        file = self._path.with_name(self._path.name + ".speedscope.json")
        self._unfinished.replace(file)
        return [file]


def py_spy() -> Path:
    """The program, beside our Python or on the PATH. Raises ProfilerError."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise ProfilerError("py-spy is not installed: pip install 'prony[profiler]'")
    return Path(found)


_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1


def _let_trace(pid: int) -> None:
    """Lets that process look into ours: Linux's Yama lets parents look into children only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_long(pid), 0, 0, 0)


def _refusal(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    remedy = ""
    if any("ermi" in line for line in lines):  # permission denied, operation not permitted
        remedy = "; a container needs --cap-add SYS_PTRACE, a host kernel.yama.ptrace_scope=0 or 1"
    return f"py-spy cannot look into this process: {' '.join(lines) or 'it said nothing'}{remedy}"
