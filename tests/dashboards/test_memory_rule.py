"""The memory rule on written series, by promtool: a leak at steady load, and what is none."""

import subprocess
from pathlib import Path

import yaml
from tests.needs import needs_program

RULES = Path(__file__).parents[2] / "dashboards/prometheus/rules/memory.yml"
JOB = 'job="prony", instance="s:8000"'


def fires(tmp_path: Path, values: str, at: str = "25m", metric: str = "") -> set[str]:
    """Which of the rules fire at that time on a series of one sample every two seconds."""
    selected = metric or f"process_resident_memory_bytes{{{JOB}}}"
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "2s",
                "input_series": [
                    {"series": selected, "values": values},
                    {"series": f"process_start_time_seconds{{{JOB}}}", "values": "0x900"},
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": at,
                        "exp_samples": [],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [needs_program("promtool"), "test", "rules", str(file)], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "expr:" in said, said
    return {name for name in ("DeviceMemoryGrows", "MemoryGrows") if f'alertname="{name}"' in said}


def test_a_leak_of_1_mb_a_second_fires(tmp_path: Path) -> None:
    assert fires(tmp_path, "1e9+2e6x900") == {"MemoryGrows"}


def test_steady_memory_does_not(tmp_path: Path) -> None:
    assert fires(tmp_path, "1e9x900") == set()


def test_one_step_up_does_not_stay_a_leak(tmp_path: Path) -> None:
    assert fires(tmp_path, "1e9x300 1.2e9x600", at="29m") == set()


def test_the_first_minutes_of_a_process_are_its_caches_filling(tmp_path: Path) -> None:
    assert fires(tmp_path, "1e9+2e6x900", at="9m") == set()


def test_device_memory_that_grows_fires_too(tmp_path: Path) -> None:
    metric = 'prony_gpu_memory_used_bytes{instance="s:8000", gpu="0"}'
    assert fires(tmp_path, "1e9+2e6x900", metric=metric) == {"DeviceMemoryGrows"}
