"""`prony dashboards`: what is wrong with boards becomes words and an exit code."""

from pathlib import Path

from tests.starting import run_program


def prony(*argv: str) -> tuple[int, str]:
    done = run_program("prony", "dashboards", *argv)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_without_prometheus_the_check_is_inconclusive_and_says_how_to_get_it() -> None:
    code, text = prony("check", "--prometheus", "no-such-program")
    assert code == 3
    assert "no query was run" in text and "apt-get install prometheus" in text


def test_a_renamed_metric_exits_1_and_names_panel_and_metric(tmp_path: Path) -> None:
    assert prony("build", "--folder", str(tmp_path))[0] == 0
    board = tmp_path / "vllm/engine.json"
    old, new = "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
    board.write_text(board.read_text().replace(old, new))
    code, text = prony("check", "--folder", str(tmp_path), "--prometheus", "no-such-program")
    assert code == 1
    assert f"vLLM: Engine / KV cache by server: nothing exports {new}" in text


def test_a_folder_without_boards_is_a_mistake(tmp_path: Path) -> None:
    code, text = prony("check", "--folder", str(tmp_path))
    assert code == 2
    assert "no boards" in text
