"""One process that serves one configuration after another."""

import json
import urllib.request
from typing import Any

import pytest

from prony_server.app import ServeError
from prony_server.in_turn import InTurn


def health(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/health", timeout=60) as response:
        return json.load(response)


def test_servers_follow_one_another_in_one_process() -> None:
    with InTurn() as servers:
        first = servers.start(inject=["slots=1", "leak=1MB/s"])
        pid = servers.pid
        assert health(first) == {"status": "ok", "injected": ["slots=1", "leak=1MB/s"]}
        for settings, said in (
            ({"inject": ["slot=1"]}, "inject: there is no fault 'slot'; did you mean slots=1"),
            ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
            ({"max_num_seq": 1}, "max_num_seq"),
            ({"model": "./no/such/folder"}, "no such folder"),
        ):
            with pytest.raises(ServeError, match=said):
                servers.start(**settings)
        with pytest.raises(OSError, match="refused"):
            health(first)
        second = servers.start()
        assert health(second) == {"status": "ok"} and servers.pid == pid
        servers.stop()
        with pytest.raises(OSError, match="refused"):
            health(second)
