"""verdict.json and what is made of it for CI: JUnit, annotations, Markdown, exit codes."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from prony_slo.annotations import MOST, annotations
from prony_slo.junit import junit_xml
from prony_slo.markdown import verdict_markdown
from prony_slo.policy import Policy, breach_code
from prony_slo.verdict_file import Verdict, document, json_schema, write

DOCS = Path(__file__).parents[2] / "docs"


def row(name: str, verdict: str, **facts: Any) -> dict[str, Any]:
    return {
        "id": name,
        "verdict": verdict,
        "severity": "fail",
        "on_inconclusive": "inconclusive",
        "promise": f"{name} is kept",
        "text": f"{name} was {verdict}",
        "place": "gate.yaml:7",
        "file": "ci/gate.yaml",
        **facts,
    }


def doc(*rows: dict[str, Any], code: int = 1, **facts: Any) -> dict[str, Any]:
    word = {0: "pass", 1: "breach", 3: "inconclusive", 4: "invalid"}[code]
    known: dict[str, Any] = {
        "verdict": word,
        "exit_code": code,
        "policy": Policy(),
        "slo": ["ci/gate.yaml"],
        "runs": [
            {"folder": "runs/1", "run_id": "1", "scenario": "chat", "target": "http://x",
             "model": "m", "seed": 1, "started_at": "2026-11-30T17:45:01Z", "side": None,
             "pair": None}
        ],
        "objectives": rows,
        "doubts": [],
    }  # fmt: skip
    return document(**(known | facts))


def cases(document: dict[str, Any]) -> dict[str, ET.Element]:
    root = ET.fromstring(junit_xml(document))
    suite = root.find("testsuite")
    assert suite is not None
    return {str(case.get("name")): case for case in suite.findall("testcase")}


def outcome(case: ET.Element) -> str:
    return next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")


# --- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        (Policy(), {0: 0, 1: 1, 3: 3, 4: 4}),
        (Policy("pass"), {0: 0, 1: 1, 3: 0, 4: 4}),
        (Policy("fail"), {0: 0, 1: 1, 3: 1, 4: 4}),
        (Policy("fail", 99), {0: 0, 1: 99, 3: 99, 4: 4}),
    ],
)
def test_a_policy_changes_the_code_and_never_what_was_invalid(
    policy: Policy, codes: dict[int, int]
) -> None:
    assert {code: policy.exit_code(code) for code in codes} == codes
    assert doc(code=3, policy=policy)["verdict"] == "inconclusive"


@pytest.mark.parametrize("text", ["0", "2", "3", "4", "126", "255", "-1", "x", "1.5", ""])
def test_a_code_that_means_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"got {text}"):
        breach_code(text)
    assert breach_code("99") == 99


# --- verdict.json ------------------------------------------------------------------------------


def test_the_committed_schema_is_what_the_code_makes() -> None:
    assert json.loads((DOCS / "verdict.schema.json").read_text()) == json_schema()


def test_a_document_fits_its_schema_and_is_replaced_in_one_step(tmp_path: Path) -> None:
    made = doc(row("ttft", "breach", bounds=[0.01, 0.02]), regression={"checks": []})
    path = write(tmp_path, made)
    assert Verdict.model_validate_json(path.read_text()).schema_ == 1
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


# --- JUnit -------------------------------------------------------------------------------------


def test_each_verdict_has_its_place_in_junit() -> None:
    found = cases(
        doc(
            row("good", "pass"),
            row("bad", "breach"),
            row("unclear", "inconclusive"),
            row("warned", "breach", severity="warn"),
        )
    )
    assert {name: outcome(case) for name, case in found.items()} == {
        "good": "passed",
        "bad": "failure",
        "unclear": "skipped",
        "warned": "skipped",
        "measurement": "passed",
    }
    assert (found["bad"].get("file"), found["bad"].get("line")) == ("ci/gate.yaml", "7")
    assert found["bad"][0].get("message") == "BREACH: bad was breach"
    assert found["unclear"][0].get("message") == "INCONCLUSIVE: unclear was inconclusive"
    assert "warning only" in str(found["warned"][0].get("message"))


def test_the_counts_of_the_suite_are_those_of_its_cases() -> None:
    text = junit_xml(doc(row("a", "pass"), row("b", "breach"), row("c", "inconclusive")))
    suite = ET.fromstring(text).find("testsuite")
    assert suite is not None
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "0", "skipped": "1"}


@pytest.mark.parametrize(
    ("policy", "own", "expected"),
    [
        (Policy(), "inconclusive", "skipped"),
        (Policy("fail"), "inconclusive", "error"),
        (Policy("pass"), "inconclusive", "skipped"),
        (Policy(), "fail", "error"),
        (Policy("fail"), "warn", "skipped"),
    ],
)
def test_inconclusive_is_an_error_only_where_the_policy_makes_it_fatal(
    policy: Policy, own: str, expected: str
) -> None:
    found = cases(doc(row("x", "inconclusive", on_inconclusive=own), code=3, policy=policy))
    assert outcome(found["x"]) == expected


def test_an_invalid_run_is_an_error_with_its_doubts() -> None:
    doubt = {"id": "send_lag", "grade": "invalid", "message": "sent late", "remedy": "less",
             "numbers": {}}  # fmt: skip
    found = cases(doc(row("x", "invalid"), code=4, doubts=[doubt]))
    assert outcome(found["x"]) == outcome(found["measurement"]) == "error"
    assert "sent late" in str(found["measurement"][0].text)


def test_a_run_without_any_objective_that_measured_nothing_is_still_seen() -> None:
    assert outcome(cases(doc(code=3))["measurement"]) == "skipped"
    assert outcome(cases(doc(code=3, policy=Policy("fail")))["measurement"]) == "error"


def test_what_xml_cannot_hold_is_replaced() -> None:
    text = junit_xml(doc(row("x", "breach", text='a\x00b\x1b <& "\ud800')))
    message = ET.fromstring(text).find("testsuite/testcase/failure")
    assert message is not None
    assert message.get("message") == 'BREACH: a\ufffdb\ufffd <& "\ufffd'


# --- annotations -------------------------------------------------------------------------------


def test_what_turns_ci_red_is_an_error_at_the_line_of_the_file() -> None:
    assert annotations(doc(row("ttft", "breach"), row("ok", "pass"))) == [
        "::error file=ci/gate.yaml,line=7,title=Prony%3A ttft::BREACH: ttft was breach"
    ]


def test_what_does_not_is_a_warning() -> None:
    found = annotations(
        doc(row("w", "breach", severity="warn"), row("u", "inconclusive"), policy=Policy("pass"))
    )
    assert [line.split(" ")[0] for line in found] == ["::warning", "::warning"]


def test_an_objective_without_a_file_has_no_place() -> None:
    (line,) = annotations(doc(row("errors < 1%", "breach", file=None, place="--slo")))
    assert line.startswith("::error title=Prony%3A errors < 1%25::BREACH")


def test_newlines_and_percent_signs_do_not_end_a_command() -> None:
    (line,) = annotations(doc(row("x", "breach", text="a 5 %\nb: c, d\r")))
    assert line.endswith("::BREACH: a 5 %25%0Ab: c, d%0D")


def test_at_most_ten_and_the_gravest_first() -> None:
    many = [row(f"u{i}", "inconclusive", severity="warn") for i in range(8)]
    many += [row(f"b{i}", "breach") for i in range(6)]
    found = annotations(doc(*many))
    assert len(found) == MOST
    assert all("breach" in line for line in found[:6])
    assert found[-1].endswith("(and 4 more: see the summary)")


def test_an_invalid_run_is_annotated_once_for_its_reason() -> None:
    doubt = {"id": "send_lag", "grade": "invalid", "message": "sent late", "remedy": "less",
             "numbers": {}}  # fmt: skip
    found = annotations(doc(row("a", "invalid"), row("b", "invalid"), code=4, doubts=[doubt]))
    assert found == ["::error title=Prony%3A send_lag::INVALID: sent late. less"]


# --- Markdown ----------------------------------------------------------------------------------


def test_markdown_says_the_verdict_first_and_escapes_what_servers_said() -> None:
    text = verdict_markdown(doc(row("ttft", "breach", text="1 | <b>no</b> [x](y)")))
    assert text.startswith("## 🔴 Prony: BREACH\n")
    assert "| 🔴 BREACH | ttft | 1 · \\<b\\>no\\</b\\> \\[x\\](y) |" in text


def test_markdown_shows_the_comparison_and_its_remedy() -> None:
    regression = {
        "verdict": "inconclusive", "text": "inconclusive, against nothing yet",
        "remedy": "`prony ab ...`", "checks": [row("ttft p50", "inconclusive")],
    }  # fmt: skip
    text = verdict_markdown(doc(code=3, regression=regression))
    assert "### Regression: inconclusive, against nothing yet" in text
    assert "| 🟡 INCONCLUSIVE | ttft p50 |" in text


def test_markdown_of_a_thousand_objectives_is_cut_where_github_would_refuse_it() -> None:
    text = verdict_markdown(doc(*(row(f"o{i}", "breach", text="x" * 100) for i in range(1000))))
    assert len(text) < 65_536 and text.endswith("verdict.json)\n")
