"""The profiler hook of a server: a target in; a profile that begins, ends and is fetched, out.

Prony's own server, vLLM and SGLang have the same two paths with other bodies, other answers where
no profiler was set up, and other places for the files (docs/profiling.md). It blocks.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from prony.profiling.captures import Capture
from prony_loadgen.error_text import shortened
from prony_loadgen.exposition import read_page
from prony_loadgen.fetch import Fetched, FetchError, fetch
from prony_loadgen.target import Target, TargetError

MOST_SECONDS: Final = 10.0  # of one capture, whatever is asked for
MOST_STEPS: Final = 10_000
START_WITHIN: Final = 10.0  # seconds for the answer to a start
STOP_WITHIN: Final = 120.0  # the same to a stop, in which a server may write its files
FETCH_WITHIN: Final = 120.0  # for one file
LARGEST: Final = 1 << 30  # bytes of one file
LONGEST_NAME: Final = 200  # letters of a file's name; disks take 255
LOOK_EVERY: Final = 0.2  # seconds between looks whether a capture of N steps is over
_ASK: Final = 5.0

START, STOP, FILES = "/start_profile", "/stop_profile", "/profile/files"

# Waits so many seconds; True where it is to end at once.
Wait = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a server's time a capture may take."""

    seconds: float = 5.0
    steps: int | None = None  # of the engine; the seconds hold all the same

    @property
    def at_most(self) -> float:
        return min(self.seconds, MOST_SECONDS)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of server is asked to profile itself."""

    name: str
    body: Callable[["Bounds", str | None], dict[str, Any]]  # what a start is sent
    missing: str  # what its user must do where it has no hook
    lies: str  # where its files are


KINDS: Final[Mapping[str, Kind]] = {
    "prony": Kind(
        "prony",
        lambda bounds, folder: {
            "seconds": bounds.at_most,
            **({} if bounds.steps is None else {"num_steps": bounds.steps}),
        },
        "start the server with --profile-dir DIR",
        "in its --profile-dir",
    ),
    "vllm": Kind(
        "vllm",
        # Its versions call the limit by two names and pass over one that they do not know.
        lambda bounds, folder: (
            {}
            if bounds.steps is None
            else {"max_iterations": bounds.steps, "num_steps": bounds.steps}
        ),
        "start vLLM with --profiler-config "
        '\'{"profiler": "torch", "torch_profiler_dir": "/DIR"}\' '
        "(older versions: VLLM_TORCH_PROFILER_DIR=/DIR)",
        "on the server's machine, in the torch_profiler_dir of vLLM's --profiler-config",
    ),
    "sglang": Kind(
        "sglang",
        lambda bounds, folder: {
            **({} if bounds.steps is None else {"num_steps": bounds.steps}),
            **({} if folder is None else {"output_dir": folder}),
            "activities": ["CPU", "GPU"],
        },
        "this SGLang has no /start_profile: it is older than 0.4, or a gateway stands before it",
        "on the server's machine, in SGLANG_TORCH_PROFILER_DIR (without it: /tmp)",
    ),
}
UNKNOWN: Final = Kind(
    "unknown",
    KINDS["vllm"].body,
    "it has no POST /start_profile: Prony's own server needs --profile-dir DIR, vLLM needs "
    "--profiler-config, and other servers have no such hook",
    "on the server's machine, where its profiler writes",
)


class Listed(NamedTuple):
    """What Prony's own server says of its captures."""

    names: tuple[str, ...]
    running: bool


class HookError(Exception):
    """The server does not profile itself: the message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Hook:
    """The hook of one target."""

    target: Target
    kind: Kind
    # Where the server writes, as seen by the server; its new files are taken from there if this
    # machine sees it too.
    folder: str | None = None

    def begin(self, bounds: Bounds) -> None:
        """Raises HookError where no profile has begun."""
        answer = self._post(START, self.kind.body(bounds, self.folder), START_WITHIN)
        if answer.status in (404, 405, 501):
            raise HookError(f"{self._at(START)}: HTTP {answer.status}: {self.kind.missing}")
        if answer.status == 409:
            raise HookError(f"{self._at(START)}: a profile is being taken already (HTTP 409)")
        if answer.status != 200:
            raise HookError(f"{self._at(START)}: HTTP {answer.status}: {_said(answer)}")

    def end(self) -> tuple[str, ...]:
        """Ends it; the names of files that the server told. Raises HookError.

        Prony's own may have ended by itself; after so many steps every kind has.
        """
        answer = self._post(STOP, {}, STOP_WITHIN)
        if answer.status == 409 and self.kind.name == "prony":
            return ()
        if answer.status != 200:
            raise HookError(f"{self._at(STOP)}: HTTP {answer.status}: {_said(answer)}")
        return file_names(answer.body)

    def listed(self) -> Listed | None:
        """What may be fetched; None where the server offers nothing."""
        try:
            answer = fetch(self.target, self._path(FILES), _ASK, most=1 << 20)
        except (FetchError, TargetError):
            return None
        if answer.status != 200:
            return None
        return Listed(file_names(answer.body), b'"running": true' in answer.body)

    def fetch(self, name: str, into: Path) -> None:
        """Writes one of its files to `into`. Raises HookError and OSError."""
        try:
            with into.open("wb") as file:
                path = self._path(f"{FILES}/{name}")
                answer = fetch(self.target, path, FETCH_WITHIN, most=LARGEST, into=file)
        except (FetchError, TargetError) as error:
            raise HookError(f"{name}: {error}") from None
        if answer.status != 200:
            raise HookError(f"{name}: HTTP {answer.status}")

    def _post(self, path: str, body: dict[str, Any], timeout: float) -> Fetched:
        try:
            return fetch(
                self.target, self._path(path), timeout, post=json.dumps(body).encode(),
                most=1 << 20,
            )  # fmt: skip
        except (FetchError, TargetError) as error:
            raise HookError(f"{self._at(path)}: {error}") from None

    def _path(self, path: str) -> str:
        return self.target.path(path, versioned=False)

    def _at(self, path: str) -> str:
        return f"{self.target.endpoint(path, versioned=False)}"


def find_hook(target: Target, folder: str | None = None) -> Hook:
    """The target's hook, by what kind of server it is.

    Raises HookError where it is certain that it has none: no profile is started to find out.
    """
    hook = Hook(target, UNKNOWN, folder)
    if hook.listed() is not None:
        return replace(hook, kind=KINDS["prony"])
    name = _engine(target)
    kind = KINDS.get(name or "", UNKNOWN)
    if kind.name == "prony" or (kind.name == "vllm" and _status(target, START) == 404):
        raise HookError(f"{target.endpoint(START, versioned=False)}: HTTP 404: {kind.missing}")
    return replace(hook, kind=kind)


def capture(
    hook: Hook, bounds: Bounds, why: str, wait: Wait, *, breached: float | None = None
) -> Capture:
    """Profiles the server within bounds; what came of it, also where that is nothing.

    Its files are not fetched: that is left for when nothing is measured.
    """
    ours = hook.kind.name == "prony"
    before = _fetchable(hook) if ours else ()
    made = Capture(why, hook.kind.name, time.time(), None, bounds.steps, bounds.seconds, breached)
    try:
        hook.begin(bounds)
    except HookError as error:
        return replace(made, ended=time.time(), failure=str(error), refused=True)
    try:
        _wait(hook, bounds, wait)
    except BaseException:
        # Ctrl-C: vLLM and SGLang would profile until somebody told them to stop.
        with suppress(HookError):
            hook.end()
        raise
    names: tuple[str, ...] = ()
    failure = None
    try:
        names = hook.end()
    except HookError as error:
        # After so many steps it has ended by itself, and says that there is nothing to end.
        if bounds.steps is None:
            failure = str(error)
    if ours:
        names = tuple(name for name in (*names, *_fetchable(hook)) if name not in before)
    ended = None if failure is not None else time.time()
    return replace(made, ended=ended, files=tuple(dict.fromkeys(names)), failure=failure)


def collect(hook: Hook, made: Capture, folder: Path, number: int) -> Capture:
    """Fetches what a capture left into `folder`; the capture with its files' names there.

    Raises OSError where the folder cannot be written.
    """
    if made.refused:
        return made
    kept: list[str] = []
    failures = [made.failure] if made.failure else []
    folder.mkdir(parents=True, exist_ok=True)
    if hook.kind.name == "prony":
        for name in made.files:
            own = f"{number}-{_safe(name)}"
            try:
                hook.fetch(name, folder / own)
                kept.append(own)
            except HookError as error:
                (folder / own).unlink(missing_ok=True)
                failures.append(str(error))
        return replace(made, files=tuple(kept), failure="; ".join(failures) or None)
    if hook.folder is not None:
        for path in _new_files(Path(hook.folder), made.began):
            own = f"{number}-{_safe(path.name)}"
            with suppress(OSError):
                shutil.copyfile(path, folder / own)
                kept.append(own)
    lies = hook.kind.lies if hook.folder is None else f"on the server's machine, in {hook.folder}"
    return replace(made, files=tuple(kept), on_server=None if kept else lies)


def _wait(hook: Hook, bounds: Bounds, wait: Wait) -> None:
    """Until the capture has had its time; Prony's own says when it has ended by itself."""
    ends = time.monotonic() + bounds.at_most
    while (left := ends - time.monotonic()) > 0:
        if hook.kind.name != "prony":
            wait(left)
            return
        if wait(min(left, LOOK_EVERY)):
            return
        listed = hook.listed()
        if listed is not None and not listed.running:
            return


def _fetchable(hook: Hook) -> tuple[str, ...]:
    listed = hook.listed()
    return () if listed is None else listed.names


def _engine(target: Target) -> str | None:
    # Here, for it brings prometheus_client and so ssl, which Locust must have patched before.
    from prony_dashboards.reading import recognised

    for path in ("/metrics", "/prometheus/metrics"):
        with suppress(FetchError, TargetError):
            answer = fetch(target, target.path(path, versioned=False), _ASK, most=4 << 20)
            if answer.status == 200:
                page = read_page(answer.body.decode("utf-8", "replace"))
                found = recognised(page.samples.keys())
                return None if found is None else found.name
    # SGLang has metrics only with --enable-metrics, but always tells of itself.
    return "sglang" if _status(target, "/get_server_info") == 200 else None


def _status(target: Target, path: str) -> int | None:
    with suppress(FetchError, TargetError):
        return fetch(target, target.path(path, versioned=False), _ASK, most=4 << 20).status
    return None


def file_names(body: bytes) -> tuple[str, ...]:
    """The names in {"files": [...]}, each text or an object with a `name`; none in other bodies."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    listed = told.get("files") if isinstance(told, dict) else told
    if not isinstance(listed, list):
        return ()
    names = [each.get("name") if isinstance(each, dict) else each for each in listed]
    return tuple(name for name in names if isinstance(name, str) and _safe(name) == name)


def _safe(name: str) -> str:
    """A file's name that cannot leave its folder, and that every disk and terminal can take."""
    letters = (c if c.isascii() and (c.isalnum() or c in "._-+@=") else "_" for c in name)
    return "".join(letters).lstrip(".")[-LONGEST_NAME:].lstrip(".") or "file"


def _new_files(folder: Path, since: float) -> list[Path]:
    with suppress(OSError):
        return [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_mtime >= since]
    return []


def _said(answer: Fetched) -> str:
    return shortened(answer.body.decode("utf-8", "replace")) or "it said nothing"
