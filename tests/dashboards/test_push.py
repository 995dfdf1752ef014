"""Boards pushed into a fake of Grafana's API that checks each body; no real Grafana is run."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana

from prony.errors import UsageError
from prony.grafana import connect
from prony_dashboards.boards import boards
from prony_dashboards.push import FOLDER, FOLDER_UID, Change, PushError, compared, push

ALL = boards()
BOARDS = {name: ALL[name] for name in ("vllm/overview.json", "vllm/engine.json")}
OVERVIEW = BOARDS["vllm/overview.json"]["uid"]


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with FakeGrafana().listening() as fake:
        yield fake


def api(grafana: FakeGrafana, **environ: str) -> Any:
    return connect(grafana.url, environ=environ or {"GRAFANA_TOKEN": TOKEN})


def pushed(grafana: FakeGrafana, boards: Any = BOARDS, dry_run: bool = False) -> list[Change]:
    return list(push(api(grafana), boards, dry_run=dry_run))


def test_boards_come_into_a_folder_of_their_own_and_nothing_else_is_touched(
    grafana: FakeGrafana,
) -> None:
    grafana.boards["other"] = {"dashboard": {"uid": "other", "version": 7}, "meta": {}}
    assert [change.kind for change in pushed(grafana)] == ["new", "new"]
    assert grafana.folders == {FOLDER_UID: FOLDER}
    assert grafana.boards["other"]["dashboard"]["version"] == 7
    assert grafana.writes == [("POST", "/api/folders"), *[("POST", "/api/dashboards/db")] * 2]
    stored = grafana.boards[OVERVIEW]
    assert stored["meta"]["folderUid"] == FOLDER_UID
    assert stored["dashboard"]["panels"] == BOARDS["vllm/overview.json"]["panels"]


def test_pushing_all_eighteen_works_and_again_writes_nothing(grafana: FakeGrafana) -> None:
    assert {change.kind for change in pushed(grafana, ALL)} == {"new"}
    assert len(grafana.boards) == 18
    grafana.writes.clear()
    assert {change.kind for change in pushed(grafana, ALL)} == {"same"}
    assert grafana.writes == []


def test_a_changed_board_is_written_over_the_version_that_was_read(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.boards[OVERVIEW]["dashboard"]["title"] = "renamed by hand"
    kinds = {change.uid: change.kind for change in pushed(grafana)}
    assert kinds == {OVERVIEW: "changed", "prony-vllm-engine": "same"}
    assert grafana.boards[OVERVIEW]["dashboard"]["title"] == "vLLM: Overview"
    assert grafana.boards[OVERVIEW]["dashboard"]["version"] == 2


def test_a_board_that_somebody_moved_stays_in_its_folder(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.folders["team"] = "Team"
    grafana.boards[OVERVIEW]["meta"]["folderUid"] = "team"
    grafana.boards[OVERVIEW]["dashboard"]["title"] = "old"
    pushed(grafana)
    assert grafana.boards[OVERVIEW]["meta"]["folderUid"] == "team"


def test_a_dry_run_says_what_would_change_and_writes_nothing(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.boards[OVERVIEW]["dashboard"]["refresh"] = "1m"
    grafana.writes.clear()
    changed, same = pushed(grafana, dry_run=True)
    assert (changed.kind, same.kind, grafana.writes) == ("changed", "same", [])
    assert '- "refresh": "1m",' in changed.diff and '+ "refresh": "5s",' in changed.diff


def test_what_grafana_itself_sets_on_a_board_is_no_difference() -> None:
    board = BOARDS["vllm/overview.json"]
    stored = {"dashboard": {**copy.deepcopy(board), "id": 12, "version": 9}}
    assert compared(board, stored) == Change(OVERVIEW, "vLLM: Overview", "same")


def test_basic_auth_of_the_environment_works_too(grafana: FakeGrafana) -> None:
    client = api(grafana, GRAFANA_USER="ann", GRAFANA_PASSWORD="secret")
    assert len(list(push(client, BOARDS))) == 2


def test_a_token_is_read_from_a_file(grafana: FakeGrafana, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert len(list(push(connect(grafana.url, tmp_path / "token", {}), BOARDS))) == 2


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"GET /api/datasources": 401}, "refuses the credential"),
        ({"POST /api/folders": 403}, "needs the role Editor"),
        ({"POST /api/dashboards/db": 403}, "needs the role Editor"),
        ({f"GET /api/dashboards/uid/{OVERVIEW}": 500}, "Grafana failed"),
    ],
)
def test_what_grafana_refuses_is_told_with_what_would_help(
    grafana: FakeGrafana, refused: dict[str, int], said: str
) -> None:
    grafana.refused = refused
    with pytest.raises(PushError, match=said):
        pushed(grafana)


def test_a_wrong_token_is_refused_before_anything_is_written(grafana: FakeGrafana) -> None:
    with pytest.raises(PushError, match="GRAFANA_TOKEN"):
        list(push(api(grafana, GRAFANA_TOKEN="wrong"), BOARDS))
    assert grafana.writes == []


@pytest.mark.parametrize("status", [409, 412])
def test_a_folder_that_somebody_made_in_this_moment_is_taken(
    grafana: FakeGrafana, status: int
) -> None:
    grafana.refused = {f"GET /api/folders/{FOLDER_UID}": 404, "POST /api/folders": status}
    grafana.folders[FOLDER_UID] = FOLDER
    assert len(pushed(grafana)) == 2


def test_a_board_saved_by_somebody_else_meanwhile_is_not_overwritten(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.boards[OVERVIEW]["dashboard"]["title"] = "theirs"
    grafana.save_meanwhile = OVERVIEW
    with pytest.raises(PushError, match="saved by somebody else"):
        pushed(grafana)
    assert grafana.boards[OVERVIEW]["dashboard"]["title"] == "theirs"


def test_a_foreign_board_under_our_uid_is_left_alone(grafana: FakeGrafana) -> None:
    theirs = {"uid": OVERVIEW, "title": "Sales", "tags": [], "version": 3}
    grafana.boards[OVERVIEW] = {"dashboard": theirs, "meta": {}}
    with pytest.raises(PushError, match="is taken by 'Sales'"):
        pushed(grafana)
    assert grafana.writes == []


def test_a_provisioned_board_is_named_as_such(grafana: FakeGrafana) -> None:
    pushed(grafana)
    grafana.boards[OVERVIEW]["meta"]["provisioned"] = True
    with pytest.raises(PushError, match="provisioned from a file"):
        pushed(grafana)


def test_without_a_prometheus_there_nothing_is_pushed(grafana: FakeGrafana) -> None:
    grafana.sources = [{"uid": "l", "type": "loki"}]
    with pytest.raises(PushError, match="no Prometheus data source"):
        pushed(grafana)
    assert grafana.writes == []


def test_an_editor_who_may_not_list_data_sources_may_push_all_the_same(
    grafana: FakeGrafana,
) -> None:
    grafana.refused = {"GET /api/datasources": 403}
    assert len(pushed(grafana)) == 2


def test_where_no_grafana_answers_that_is_said() -> None:
    with pytest.raises(PushError, match="no Grafana answers there"):
        list(push(connect("http://127.0.0.1:9", environ={}), BOARDS))


@pytest.mark.parametrize(
    ("url", "said"),
    [("127.0.0.1:3000", "expected http://HOST:PORT"), ("http://a:b@h", "no credential in a URL")],
)
def test_a_url_that_cannot_be_one_or_holds_a_password_is_a_mistake(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        connect(url, environ={})
    assert "a:b" not in str(error.value)
