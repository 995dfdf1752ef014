"""POST /start_profile and /stop_profile as vLLM has them, and the captures' files to fetch.

These routes exist only where the server was given a folder for captures: whoever reaches them can
make the server slow and read what it does.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict
from typing import Any

from aiohttp import web

from prony_server.openai_api import ApiError, Body, parse_json
from prony_server.profiler import (
    MOST_SECONDS,
    MOST_STEPS,
    AlreadyRunning,
    Asked,
    NotRunning,
    Profiler,
    ProfilerError,
)

PATHS = ("/start_profile", "/stop_profile", "/profile/")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ProfileRoutes:
    """`profiler` is set once there is an engine to look at."""

    def __init__(self) -> None:
        self.profiler: Profiler | None = None

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/start_profile", self.start)
        app.router.add_post("/stop_profile", self.stop)
        app.router.add_get("/profile/files", self.files)
        app.router.add_get("/profile/files/{name}", self.file)

    async def close(self) -> None:
        if self.profiler is not None:
            await self.profiler.close()

    async def start(self, request: web.Request) -> web.Response:
        """200 once the capture has begun; it ends by itself, after its steps or its seconds."""
        raw = await request.read()
        if raw and request.content_type != "application/json":
            message = "the body must be sent with the header 'Content-Type: application/json'"
            raise ApiError(415, message, code="unsupported_media_type")
        asked = _asked(parse_json(raw) if raw else {})
        profiler = self._ready()
        try:
            bounds = await profiler.start(asked)
        except AlreadyRunning:
            message = "a profile is being captured; POST /stop_profile ends it"
            raise ApiError(409, message, code="profile_running") from None
        except ProfilerError as error:
            raise _failed(error) from None
        return web.json_response({"profiler": profiler.kind, **asdict(bounds)})

    async def stop(self, _: web.Request) -> web.Response:
        """The names of the files, once they are written."""
        try:
            return web.json_response({"files": await self._ready().stop()})
        except NotRunning:
            message = "no profile is being captured; one that ended is in /profile/files"
            raise ApiError(409, message, code="no_profile") from None
        except ProfilerError as error:
            raise _failed(error) from None

    async def files(self, _: web.Request) -> web.Response:
        profiler = self._ready()
        try:
            files = [{"name": name, "bytes": size} for name, size in profiler.files()]
        except ProfilerError as error:
            raise _failed(error) from None
        return web.json_response({"running": profiler.running, "files": files})

    async def file(self, request: web.Request) -> web.StreamResponse:
        try:
            path = self._ready().path(request.match_info["name"])
        except ProfilerError as error:
            raise _failed(error) from None
        if path is None:
            raise ApiError(404, "there is no such capture; see /profile/files", code="no_such_file")
        return web.FileResponse(path)

    def _ready(self) -> Profiler:
        if self.profiler is None:
            message = "the server takes no requests now: loading the model"
            raise ApiError(503, message, kind="server_error", code="unavailable")
        return self.profiler


def _asked(body: Body) -> Asked:
    """vLLM's names where it has one; an unknown one is refused rather than ignored."""
    for name in body:
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, 1)
            did_you_mean = f"; did you mean '{near[0]}'?" if near else "."
            message = f"unknown parameter '{name}'{did_you_mean} There are {', '.join(_READERS)}"
            raise ApiError(400, message, param=name, code="unknown_parameter")
    given: dict[str, Any] = {}
    for name, value in body.items():
        field, fits, expected = _READERS[name]
        if not fits(value):
            message = f"'{name}' must be {expected}, got {value!r:.60}"
            raise ApiError(400, message, param=name, code="invalid_value")
        given[field] = value
    return Asked(**given)


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_STEPS


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= MOST_SECONDS


def _is_prefix(value: Any) -> bool:
    return isinstance(value, str) and _PREFIX.fullmatch(value) is not None


def _is_flag(value: Any) -> bool:
    return type(value) is bool


_STEPS = ("num_steps", _is_count, f"a whole number from 1 to {MOST_STEPS}")
_READERS = {
    "num_steps": _STEPS,
    "max_iterations": _STEPS,
    "seconds": ("seconds", _is_seconds, f"a number above 0, at most {MOST_SECONDS:g}"),
    "profile_prefix": ("prefix", _is_prefix, "1 to 64 letters, digits and . _ -"),
    "with_stack": ("with_stack", _is_flag, "true or false"),
}


def _failed(error: ProfilerError) -> ApiError:
    return ApiError(501, str(error), kind="server_error", code="profiler_failed")
