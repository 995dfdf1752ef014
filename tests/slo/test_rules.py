"""Rules for production: promtool accepts them, and a synthetic breach fires the right alert."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.needs import needs_program

from prony_server import telemetry as server
from prony_slo.engines import ENGINES
from prony_slo.promise import Condition, Floor, Objective, Query, Regression, Share, SloFile
from prony_slo.rules import Rules, exported, le, rules, snapped

TTFT = Objective("ttft", Share((Condition("ttft", 0.5),), 0.01), "chat.yaml:3")
ERRORS = Objective("errors", Share((), 0.005), "chat.yaml:4")
GOODPUT = Objective(
    "goodput", Share((Condition("ttft", 0.5), Condition("tpot", 0.05)), 0.05), "chat.yaml:5"
)
E2E = Objective("e2e-p99", Share((Condition("e2e", 12.0),), 0.01), "chat.yaml:6", severity="warn")
TOKENS = Objective("tput", Floor("output_tokens_per_s", 1200), "chat.yaml:7")
KV = Objective(
    "kv-cache",
    Query('max_over_time(avg(vllm:kv_cache_usage_perc{job="vllm"})[$window:5s])', None, 0.95),
    "chat.yaml:8",
    severity="warn",
)


def slo_of(*objectives: Objective, **facts: Any) -> SloFile:
    return SloFile("chat", objectives, metadata={"service": "llm-chat"}, **facts)


EVERYTHING = slo_of(TTFT, ERRORS, GOODPUT, E2E, TOKENS, KV, regression=Regression(()))


def promtool(tmp_path: Path, *argv: str) -> str:
    done = subprocess.run(
        [needs_program("promtool"), *argv], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts(made: Rules) -> dict[tuple[str, str], str]:
    return {
        (rule["labels"]["slo"], rule["labels"]["severity"]): rule["expr"]
        for group in made.groups
        for rule in group["rules"]
        if "alert" in rule
    }


@pytest.mark.parametrize("engine", list(ENGINES))
def test_promtool_accepts_the_rules_of_every_engine(engine: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules(EVERYTHING, engine).to_yaml())
    said = promtool(tmp_path, "check", "rules", "rules.yml")
    assert "SUCCESS" in said


def test_a_fast_breach_pages_and_a_slow_one_makes_a_ticket_and_a_kept_promise_neither(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.yml").write_text(rules(slo_of(TTFT), "vllm").to_yaml())
    # 100 requests a minute. Of a budget of 1 %, 30 % bad is 30 times too fast, 4 % four times.
    cases = []
    for bad, fires in ((30, {"page", "ticket"}), (4, {"ticket"}), (0, set())):
        labels = '{job="vllm",model_name="m"'
        series = [
            {"series": f'vllm:time_to_first_token_seconds_bucket{labels},le="0.5"}}',
             "values": f"0+{100 - bad}x1600"},
            {"series": f"vllm:time_to_first_token_seconds_count{labels}}}", "values": "0+100x1600"},
        ]  # fmt: skip
        expected = [
            {
                "exp_labels": {"service": "llm-chat", "slo": "ttft", "severity": severity},
                "exp_annotations": {
                    "summary": "llm-chat: the error budget of ttft burns "
                    + {"page": "fast", "ticket": "faster than it may"}[severity],
                    "description": "ttft <= 500 ms for 99 % of requests; now "
                    f"{bad}% of requests are bad",
                },
            }
            for severity in sorted(fires)
        ]
        cases.append(
            {
                "interval": "1m",
                "input_series": series,
                "alert_rule_test": [
                    {"eval_time": "25h", "alertname": "ErrorBudgetBurn", "exp_alerts": expected}
                ],
            }
        )
    # Every 5 minutes over 25 hours is enough, and a fifth of the work.
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "5m", "tests": cases}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", "test.yml")


def test_errors_of_our_own_server_fire_and_clients_that_went_away_do_not(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules(slo_of(ERRORS), "prony").to_yaml())
    count = "gen_ai_server_request_duration_seconds_count"

    def case(error_type: str, alarms: list[str]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [
                {"series": f'{count}{{job="prony",error_type=""}}', "values": "0+80x400"},
                {
                    "series": f'{count}{{job="prony",error_type="{error_type}"}}',
                    "values": "0+20x400",
                },
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (severity) (ALERTS{alertstate="firing",severity="page"})',
                    "eval_time": "6h",
                    "exp_samples": [
                        {"labels": f'{{severity="{severity}"}}', "value": 1} for severity in alarms
                    ],
                }
            ],
        }

    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [case("500", ["page"]), case("client_disconnected", [])],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", "test.yml")


def test_a_limit_between_two_buckets_becomes_the_stricter_one_and_that_is_said() -> None:
    made = rules(slo_of(E2E), "vllm")
    assert any("no bucket at 12 s; 10 s is watched, which is stricter" in n for n in made.notes)
    assert 'le=~"10|10[.]0"' in made.to_yaml()
    assert "# e2e-p99:" in made.to_yaml()


def test_a_limit_below_the_first_bucket_is_left_out_and_not_loosened() -> None:
    fast = Objective("e2e", Share((Condition("e2e", 0.2),), 0.01), "chat.yaml:3")
    found = exported(slo_of(fast), "vllm")
    assert found.indicators == () and found.kept == (fast,)
    assert "below the first bucket" in found.notes[0]
    with pytest.raises(ValueError, match="nothing in it can become a rule"):
        rules(slo_of(fast), "vllm")


def test_buckets_that_the_file_names_win_over_the_engines() -> None:
    made = exported(
        slo_of(E2E, export={"prometheus": {"profile": "vllm", "buckets": {"e2e": [6, 12, 24]}}})
    )
    assert made.indicators[0].limit == 12.0
    assert made.notes == ()


def test_joint_conditions_are_watched_apart_and_that_is_said() -> None:
    found = exported(slo_of(GOODPUT), "prony")
    assert [i.id for i in found.indicators] == ["goodput-ttft", "goodput-tpot"]
    assert "necessary, not sufficient" in found.notes[0]


def test_a_budget_that_cannot_burn_so_fast_has_no_such_alert() -> None:
    loose = Objective("ttft", Share((Condition("ttft", 0.5),), 0.2), "chat.yaml:3")
    made = rules(slo_of(loose), "vllm")
    assert alerts(made).keys() == {("ttft", "ticket")}
    assert any("cannot burn 14.4 times" in note for note in made.notes)


def test_the_factors_are_those_of_a_30_day_window_and_scale_with_another() -> None:
    page = alerts(rules(slo_of(TTFT), "vllm"))["ttft", "page"]
    assert "> 0.144" in page and "> 0.06" in page
    week = slo_of(TTFT, export={"prometheus": {"window": "7d"}})
    assert "> 0.0336" in alerts(rules(week, "vllm"))["ttft", "page"]


def test_a_warning_makes_tickets_and_no_pages() -> None:
    assert alerts(rules(slo_of(E2E), "vllm")).keys() == {("e2e-p99", "ticket")}


def test_what_has_no_form_in_production_is_named() -> None:
    notes = exported(EVERYTHING, "vllm").notes
    assert any(note.startswith("tput:") for note in notes)
    assert any(note.startswith("regression:") for note in notes)
    assert any("gateway" in note for note in notes)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tgi: no engine that is known"):
        rules(slo_of(TTFT, export={"prometheus": {"profile": "tgi"}}))


def test_a_bound_matches_however_a_client_wrote_it() -> None:
    assert (le(0.5), le(10.0)) == ('le="0.5"', 'le=~"10|10[.]0"')
    series = ENGINES["vllm"].latencies["ttft"]
    assert snapped(series, 0.3) == 0.25
    assert snapped(series, 0.5) == 0.5
    assert snapped(series, 0.0005) is None


def test_the_buckets_of_our_own_server_are_the_servers() -> None:
    ours = ENGINES["prony"].latencies
    assert ours["ttft"].name == server.TIME_TO_FIRST_TOKEN
    assert ours["tpot"].name == server.TIME_PER_OUTPUT_TOKEN
    assert ours["e2e"].name == server.REQUEST_DURATION
    assert ours["ttft"].buckets == server._TTFT_BUCKETS
    assert ours["tpot"].buckets == server._TPOT_BUCKETS
    assert ours["e2e"].buckets == server._DURATION_BUCKETS
