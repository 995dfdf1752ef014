"""A fake of Grafana's HTTP API: it checks requests against the documented contract and remembers.

Written from Grafana's API documentation (folders, data sources, dashboards, annotations). It is no
Grafana: no real one is run in these tests, and `listening` says so on stdout.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from prony_dashboards.served import served

TOKEN = "glsa_test"
NOTICE = "a fake of Grafana's API answers here; no real Grafana was run"
# What each body may hold, and what it must.
SHAPES: dict[str, tuple[dict[str, type | tuple[type, ...]], set[str]]] = {
    "/api/folders": (
        {"title": str, "uid": str, "parentUid": str, "description": str},
        {"title"},
    ),
    "/api/dashboards/db": (
        {"dashboard": dict, "folderUid": str, "message": str, "overwrite": bool},
        {"dashboard"},
    ),
    "/api/annotations": (
        {
            "dashboardUID": str,
            "panelId": (int, type(None)),
            "time": int,
            "timeEnd": (int, type(None)),
            "tags": list,
            "text": str,
        },
        {"text"},
    ),
}


class FakeGrafana:
    """Its folders, boards and annotations are there to be looked at and to be set."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}  # uid -> title
        self.boards: dict[str, dict[str, Any]] = {}  # uid -> {"dashboard", "meta"}
        self.sources: list[dict[str, Any]] = [{"uid": "p", "type": "prometheus", "name": "P"}]
        self.annotations: dict[int, dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []  # method and path of each
        self.refused: dict[str, int] = {}  # "POST /api/folders" -> the status it gets
        self.save_meanwhile: str | None = None  # a uid that somebody saves before our next write
        self.url = ""

    def answer(self, method: str, path: str, credential: str, body: Any) -> tuple[int, Any]:
        basic = "Basic " + base64.b64encode(b"ann:secret").decode()
        if credential not in (f"Bearer {TOKEN}", basic):
            return 401, {"message": "Unauthorized"}
        if (status := self.refused.get(f"{method} {path}")) is not None:
            return status, {"message": f"refused with {status}"}
        if method != "GET":
            self.writes.append((method, path))
            if wrong := _wrong(path, method, body):
                return 400, {"message": wrong}
        match method, path.split("/")[2:]:
            case "GET", ["datasources"]:
                return 200, self.sources
            case "GET", ["folders", uid]:
                if uid not in self.folders:
                    return 404, {"message": "folder not found"}
                return 200, {"uid": uid, "title": self.folders[uid]}
            case "POST", ["folders"]:
                if body["uid"] in self.folders:
                    return 409, {"message": "a folder with that uid already exists"}
                self.folders[body["uid"]] = body["title"]
                return 200, {"uid": body["uid"], "title": body["title"]}
            case "GET", ["dashboards", "uid", uid]:
                found = self.boards.get(uid)
                return (404, {"message": "Dashboard not found"}) if found is None else (200, found)
            case "POST", ["dashboards", "db"]:
                return self._save(body)
            case "POST", ["annotations"]:
                number = len(self.annotations) + 1
                self.annotations[number] = dict(body)
                return 200, {"message": "Annotation added", "id": number}
            case "PATCH", ["annotations", number]:
                if int(number) not in self.annotations:
                    return 404, {"message": "Could not find annotation to update"}
                self.annotations[int(number)].update(body)
                return 200, {"message": "Annotation patched"}
        return 404, {"message": f"the fake knows no {method} {path}"}

    def _save(self, body: dict[str, Any]) -> tuple[int, Any]:
        board, folder = body["dashboard"], body.get("folderUid", "")
        uid = board["uid"]
        if self.save_meanwhile == uid:
            self.boards[uid]["dashboard"]["version"] += 1
        stored = self.boards.get(uid)
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        if stored is not None and not body.get("overwrite"):
            if stored["meta"].get("provisioned"):
                return 400, {"message": "Cannot save provisioned dashboard"}
            if board.get("version") != stored["dashboard"]["version"]:
                return 412, {
                    "status": "version-mismatch",
                    "message": "The dashboard has been changed by someone else",
                }
        version = 1 if stored is None else stored["dashboard"]["version"] + 1
        number = len(self.boards) + 1 if stored is None else stored["dashboard"]["id"]
        self.boards[uid] = {
            "dashboard": {**board, "id": number, "version": version},
            "meta": {"folderUid": folder, "provisioned": False},
        }
        return 200, {"uid": uid, "status": "success", "version": version}

    @contextmanager
    def listening(self) -> Iterator["FakeGrafana"]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                status, told = fake.answer(
                    self.command,
                    self.path,
                    self.headers.get("Authorization", ""),
                    json.loads(raw) if raw else None,
                )
                answer = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PATCH = _do

            def log_message(self, format: str, *args: object) -> None:
                pass

        print(NOTICE)
        with served(Handler) as self.url:
            yield self


def _wrong(path: str, method: str, body: Any) -> str | None:
    """What of a body is not as documented."""
    known, needed = SHAPES["/api/annotations" if "/annotations" in path else path]
    if not isinstance(body, dict):
        return "the body is not an object"
    if missing := needed - body.keys():
        return f"{', '.join(sorted(missing))} missing"
    for name, value in body.items():
        if name not in known:
            return f"{name}: no such key"
        if not isinstance(value, known[name]):
            return f"{name}: {value!r}"
    if "dashboard" in body:
        board = body["dashboard"]
        if board.get("id") is not None or not board.get("uid") or not board.get("title"):
            return "a board is saved by uid, with a title and without an id of another Grafana"
    return None
