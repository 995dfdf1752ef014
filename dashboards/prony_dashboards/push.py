"""Boards into a Grafana: its API, and boards, go in; what was or would be changed comes out.

Nothing else in that Grafana is touched: one folder of ours is made where it is missing, a board is
written under its fixed uid, and what stands there already must be ours.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from prony_dashboards.board import TAG, Board

FOLDER_UID: Final = "prony"
FOLDER: Final = "Prony"
MESSAGE: Final = "prony dashboards push"
# What Grafana itself sets on a board.
ITS_OWN: Final = ("id", "version", "iteration")


class PushError(Exception):
    """Why boards cannot be pushed: one line that names the thing and the remedy."""


@dataclass(frozen=True, slots=True)
class Change:
    """One board, and how what is there differs from it."""

    uid: str
    title: str
    kind: Literal["new", "changed", "same"]
    diff: tuple[str, ...] = ()  # lines of a unified diff, from what is there to ours


def push(api: Any, boards: Mapping[str, Board], *, dry_run: bool = False) -> Iterator[Change]:
    """Writes the boards, one after another, and tells each; `api` is a grafana_client.GrafanaApi.

    With `dry_run` nothing is written. Raises PushError where Grafana refuses, or where a board of
    somebody else has one of our uids: what was told before that was done.
    """
    _need_a_prometheus(api)
    there = {board["uid"]: _stored(api, board["uid"]) for board in boards.values()}
    for board in boards.values():
        _refuse_others(board, there[board["uid"]])
    if not dry_run:
        _make_folder(api)
    for board in boards.values():
        change = compared(board, there[board["uid"]])
        if not dry_run and change.kind != "same":
            _write(api, board, there[board["uid"]])
        yield change


def compared(board: Board, stored: Mapping[str, Any] | None) -> Change:
    """How what is stored under the board's uid differs from the board."""
    uid, title = board["uid"], board["title"]
    if stored is None:
        return Change(uid, title, "new")
    old, new = _lines(stored["dashboard"]), _lines(board)
    diff = tuple(difflib.unified_diff(old, new, f"{uid} in Grafana", f"{uid} here", "", "", 2, ""))
    return Change(uid, title, "changed" if diff else "same", diff)


def _need_a_prometheus(api: Any) -> None:
    from grafana_client.client import GrafanaClientError

    try:
        sources = _asked(api.datasource.list_datasources)
    except GrafanaClientError as error:
        if error.status_code == 403:
            return  # an editor's token may not list them; the boards let one choose anyway
        raise PushError(_told(error)) from None
    if not any(source.get("type") == "prometheus" for source in sources):
        raise PushError("it has no Prometheus data source, so no board could show anything")


def _stored(api: Any, uid: str) -> Mapping[str, Any] | None:
    from grafana_client.client import GrafanaClientError

    try:
        found: Mapping[str, Any] = _asked(lambda: api.dashboard.get_dashboard(uid))
    except GrafanaClientError as error:
        if error.status_code == 404:
            return None
        raise PushError(_told(error)) from None
    return found


def _refuse_others(board: Board, stored: Mapping[str, Any] | None) -> None:
    if stored is None:
        return
    if TAG not in (stored["dashboard"].get("tags") or ()):
        raise PushError(
            f"{board['uid']} is taken by {stored['dashboard'].get('title')!r}, which is not "
            f"tagged {TAG!r}: rename its uid first"
        )
    if (stored.get("meta") or {}).get("provisioned"):
        raise PushError(
            f"{board['uid']} is provisioned from a file there, so it cannot be pushed: change the "
            "file, or delete it"
        )


def _make_folder(api: Any) -> None:
    from grafana_client.client import GrafanaClientError

    try:
        _asked(lambda: api.folder.get_folder(FOLDER_UID))
        return
    except GrafanaClientError as error:
        if error.status_code != 404:
            raise PushError(_told(error)) from None
    try:
        _asked(lambda: api.folder.create_folder(FOLDER, uid=FOLDER_UID))
    except GrafanaClientError as error:
        if error.status_code not in (409, 412):  # somebody made it in this moment
            raise PushError(_told(error)) from None


def _write(api: Any, board: Board, stored: Mapping[str, Any] | None) -> None:
    from grafana_client.client import GrafanaClientError

    # The version that was compared: if somebody saved since, Grafana refuses instead of losing it.
    version = {} if stored is None else {"version": stored["dashboard"].get("version")}
    meta = {} if stored is None else stored.get("meta") or {}
    body = {
        "dashboard": {**board, "id": None, **version},
        "folderUid": meta.get("folderUid", FOLDER_UID),  # who moved a board keeps it there
        "message": MESSAGE,
        "overwrite": False,
    }
    try:
        _asked(lambda: api.dashboard.update_dashboard(body))
    except GrafanaClientError as error:
        if error.status_code == 412:
            raise PushError(
                f"{board['uid']} was saved by somebody else in this moment, or its title is taken "
                f"in its folder; look, and push again ({error.message})"
            ) from None
        raise PushError(f"{board['uid']}: {_told(error)}") from None


def _asked(call: Any) -> Any:
    """The answer of Grafana. Raises GrafanaClientError for a 4xx, PushError for all else."""
    from grafana_client.client import GrafanaClientError, GrafanaException
    from niquests.exceptions import RequestException

    try:
        return call()
    except GrafanaClientError:
        raise
    except GrafanaException as error:
        raise PushError(f"Grafana failed: {error.message}") from None
    except (RequestException, OSError, ValueError) as error:
        raise PushError(f"no Grafana answers there: {error}") from None


def _told(error: Any) -> str:
    meanings = {
        401: "it refuses the credential (401): set GRAFANA_TOKEN, or GRAFANA_USER and "
        "GRAFANA_PASSWORD",
        403: "the credential may not do this (403): it needs the role Editor",
    }
    return meanings.get(error.status_code, f"{error.message}")


def _lines(board: Mapping[str, Any]) -> list[str]:
    kept = {name: value for name, value in board.items() if name not in ITS_OWN}
    return json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
