"""JUnit XML of a verdict: verdict.json goes in, what GitLab, Jenkins and Azure read comes out.

JUnit knows no third verdict. What is inconclusive is `skipped`, which turns nothing red, or an
`error` where the policy makes it fatal; only a breach is a `failure`, and a doubt that forbids any
verdict is an `error` of the test "measurement".
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from prony_slo.policy import Policy, turns_red
from prony_slo.verdict_file import rows

MEASUREMENT = "measurement"
# What XML 1.0 cannot hold, however it is escaped; servers send it in their errors.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(document: Mapping[str, Any]) -> str:
    """The file's text: one test an objective and a check, and one for the measurement itself."""
    policy = Policy(**document["policy"])
    names = sorted({str(run["scenario"]) for run in document["runs"] if run["scenario"]})
    suite = ET.Element("testsuite", name="prony", timestamp=document["judged_at"].rstrip("Z"))
    group = f"prony.{'+'.join(names)}" if names else "prony"
    for row in rows(document):
        _add_row(suite, group, row, policy)
    _add_measurement(suite, group, document, policy)
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("time", "0")
    whole = ET.Element("testsuites", {k: v for k, v in suite.attrib.items() if k != "timestamp"})
    whole.append(suite)
    ET.indent(whole)
    return ET.tostring(whole, encoding="unicode", xml_declaration=True) + "\n"


def _add_row(suite: ET.Element, group: str, row: Mapping[str, Any], policy: Policy) -> None:
    case = _case(suite, group, str(row["id"]))
    path, _, line = str(row["place"]).rpartition(":")
    if path and line.isdigit():
        case.set("file", _clean(str(row.get("file") or path)))
        case.set("line", line)
    verdict, text = str(row["verdict"]), str(row["text"])
    said = f"{row['promise']}: {text}"
    if verdict == "pass":
        ET.SubElement(case, "system-out").text = _clean(said)
    elif turns_red(row, policy):
        # Inconclusive by itself is what `policy` says; an objective may say `fail` too.
        fatal = row.get("on_inconclusive") == "fail" or policy.inconclusive == "fail"
        tag = {"breach": "failure", "invalid": "error"}.get(
            verdict, "error" if fatal else "skipped"
        )
        _outcome(case, tag, verdict, text, said)
    else:
        _outcome(case, "skipped", verdict, text, said, " (warning only)" if _warns(row) else "")


def _add_measurement(
    suite: ET.Element, group: str, document: Mapping[str, Any], policy: Policy
) -> None:
    case = _case(suite, group, MEASUREMENT)
    doubts = [f"{d['grade']}: {d['message']} ({d['remedy']})" for d in document["doubts"]]
    found = "\n".join(doubts) or "no doubts"
    told_by_rows = any(row["verdict"] == document["verdict"] for row in rows(document))
    distrusted = any(doubt["grade"] == "invalid" for doubt in document["doubts"])
    if document["verdict"] == "invalid" and (distrusted or not told_by_rows):
        _outcome(case, "error", "invalid", "the measurement cannot be trusted", found)
    elif document["verdict"] == "inconclusive" and not told_by_rows:
        tag = "error" if policy.inconclusive == "fail" else "skipped"
        _outcome(case, tag, "inconclusive", "nothing was measured", found)
    else:
        ET.SubElement(case, "system-out").text = _clean(found)


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_clean(group), name=_clean(name), time="0")


def _outcome(
    case: ET.Element, tag: str, verdict: str, text: str, said: str, note: str = ""
) -> None:
    message = _clean(f"{verdict.upper()}{note}: {text}")
    outcome = ET.SubElement(case, tag, message=message)
    if tag != "skipped":
        outcome.set("type", verdict)
    outcome.text = _clean(said)


def _warns(row: Mapping[str, Any]) -> bool:
    return row.get("severity") == "warn" or row.get("on_inconclusive") == "warn"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
