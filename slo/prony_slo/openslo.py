"""OpenSLO v1: an SLO file goes in, OpenSLO documents come out, and the other way.

OpenSLO (github.com/OpenSLO/OpenSLO) describes production: it knows ratios of counters and
thresholds of queries, and no percentile of a run, throughput, stage or build. What has no form
there stays in annotations, so that an SLO file comes back as it was.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from prony_loadgen.strict_yaml import FileError, loads
from prony_slo.engines import ENGINES
from prony_slo.objective import read_slo
from prony_slo.promise import short_ms
from prony_slo.rules import DEFAULT_WINDOW, Indicator, exported
from prony_slo.slo_model import SloModel

API: Final = "openslo/v1"
# Of annotations; their values are JSON.
OBJECTIVE: Final = "prony/objective"  # as it stood in the SLO file
WROTE: Final = "prony/wrote"  # what of it went into the spec, to notice that somebody changed that
PART_OF: Final = "prony/part-of"  # the joint objective that this is one condition of
REST: Final = "prony/rest"  # of the service: everything else of the file

Data = dict[str, Any]


def to_openslo(path: Path, engine: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The OpenSLO documents of the SLO file at `path`, and notes on what differs from it.

    Raises FileError for a wrong file, ValueError for an unknown engine.
    """
    slo = read_slo(path)
    raw: Data = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    entries = {entry["id"]: entry for entry in raw["objectives"]}
    found = exported(slo, engine)
    service = _name(str(slo.metadata.get("service") or slo.name))
    window = (raw.get("export") or {}).get("prometheus", {}).get("window") or DEFAULT_WINDOW
    whole = {i.objective.id for i in found.indicators if i.id == i.objective.id}
    # Of what has a form there only the id stays here, to remember the order.
    kept = [entry["id"] if entry["id"] in whole else entry for entry in raw["objectives"]]
    rest = {**raw, "objectives": kept}
    documents: list[Data] = [
        {
            "apiVersion": API,
            "kind": "Service",
            "metadata": {"name": service, "annotations": {REST: json.dumps(rest)}},
            "spec": {"description": f"What {slo.name} promises."},
        }
    ]
    for indicator in found.indicators:
        documents.append(_slo(indicator, entries[indicator.objective.id], service, window))
    text = yaml.safe_dump_all(documents, sort_keys=False, width=1000, allow_unicode=True)
    return text, found.notes


def from_openslo(path: Path) -> tuple[str, tuple[str, ...]]:
    """The SLO file of OpenSLO documents, and notes on what could not be read as it was meant.

    Raises FileError where nothing in them can be judged.
    """
    documents = _documents(path)
    notes: list[str] = []
    slis = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "SLI"}
    objectives: dict[str, Data] = {}
    for document in documents:
        if document["kind"] == "SLO" and PART_OF not in _annotations(document):
            for entry in _entries(document, slis, notes):
                objectives[entry["id"]] = entry
    raw: Data = next((r for d in documents if (r := _annotation(d, REST)) is not None), {})
    file = _restored(raw, objectives)
    if not file.get("objectives"):
        raise FileError([f"{path}: nothing in it can be judged in a run; {'; '.join(notes)}"])
    text = yaml.safe_dump(file, sort_keys=False, width=100, allow_unicode=True)
    loads(text, path.name, SloModel)  # whatever somebody changed there, it must be valid here
    return text, tuple(dict.fromkeys(notes))


def _slo(indicator: Indicator, entry: Mapping[str, Any], service: str, window: str) -> Data:
    joint = indicator.id != indicator.objective.id
    target = round(1 - indicator.allowed, 12)
    annotations = (
        {PART_OF: json.dumps(indicator.objective.id)}
        if joint
        else {
            OBJECTIVE: json.dumps(dict(entry)),
            WROTE: json.dumps({"limit": indicator.limit, "target": target}),
        }
    )
    counted = ("bad", indicator.bad) if indicator.bad is not None else ("good", indicator.good)
    return {
        "apiVersion": API,
        "kind": "SLO",
        "metadata": {
            "name": _name(indicator.id),
            "displayName": indicator.id,
            "annotations": annotations,
        },
        "spec": {
            "description": str(indicator.objective.promise),
            "service": service,
            "indicator": {
                "metadata": {"name": _name(indicator.id)},
                "spec": {
                    "ratioMetric": {
                        "counter": True,
                        counted[0]: _source(f"sum({counted[1]})"),
                        "total": _source(f"sum({indicator.total})"),
                    }
                },
            },
            "timeWindow": [{"duration": str(window), "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"displayName": indicator.id, "target": target}],
        },
    }


def _source(query: str) -> Data:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


def _entries(document: Data, slis: Mapping[str, Data], notes: list[str]) -> Iterator[Data]:
    """The SLO-file entries of one SLO document: one for each of its objectives."""
    spec, name = document.get("spec") or {}, document["metadata"]["name"]
    indicator = (spec.get("indicator") or {}).get("spec") or slis.get(
        str(spec.get("indicatorRef") or "")
    )
    if indicator is None:
        notes.append(f"{name}: has no indicator in this file; left out")
        return
    if spec.get("budgetingMethod", "Occurrences") != "Occurrences":
        notes.append(f"{name}: a run knows no time slices, so requests are counted instead")
    found = spec.get("objectives") or []
    for index, objective in enumerate(found):
        entry_id = document["metadata"].get("displayName") or name
        if len(found) > 1:
            entry_id = f"{entry_id}-{objective.get('displayName') or index + 1}"
        entry = _entry(entry_id, indicator, objective, notes)
        if entry is not None:
            yield _as_it_was(document, entry, objective, notes)


def _entry(entry_id: str, indicator: Data, objective: Data, notes: list[str]) -> Data | None:
    ratio = indicator.get("ratioMetric")
    if ratio is None:
        return _of_threshold(entry_id, indicator.get("thresholdMetric") or {}, objective, notes)
    target = objective.get("target")
    if target is None and objective.get("targetPercent") is not None:
        target = round(float(objective["targetPercent"]) / 100, 12)
    total = _query(ratio.get("total"))
    good, bad = _query(ratio.get("good")), _query(ratio.get("bad"))
    if target is None or total is None or (good is None and bad is None):
        notes.append(f"{entry_id}: needs a target, a total and good or bad; left out")
        return None
    if bad is not None:
        if any(_counter(engine.bad) in bad for engine in ENGINES.values()):
            return {
                "id": entry_id, "metric": "error_rate", "at_most": round(1 - float(target), 12),
            }  # fmt: skip
        asked = f"({_over_window(bad)}) / ({_over_window(total)})"
        return {"id": entry_id, "promql": asked, "at_most": round(1 - float(target), 12)}
    assert good is not None
    condition = _condition(good)
    if condition is not None:
        metric, limit = condition
        return {
            "id": entry_id, "good": {metric: f"<= {_plain(limit)}"}, "at_least": float(target),
        }  # fmt: skip
    asked = f"({_over_window(good)}) / ({_over_window(total)})"
    return {"id": entry_id, "promql": asked, "at_least": float(target)}


def _of_threshold(entry_id: str, threshold: Data, objective: Data, notes: list[str]) -> Data | None:
    query, op, value = _query(threshold), objective.get("op"), objective.get("value")
    bound = {"lte": "at_most", "lt": "at_most", "gte": "at_least", "gt": "at_least"}.get(str(op))
    if query is None or bound is None or value is None:
        notes.append(f"{entry_id}: needs a query, an op and a value; left out")
        return None
    return {"id": entry_id, "promql": query, bound: float(value)}


def _as_it_was(document: Data, entry: Data, objective: Data, notes: list[str]) -> Data:
    """The entry as the SLO file had it, unless somebody changed the spec since."""
    kept, wrote = _annotation(document, OBJECTIVE), _annotation(document, WROTE)
    if not isinstance(kept, dict) or not isinstance(wrote, dict):
        return entry
    limit = None
    if "good" in entry:
        indicator = document["spec"]["indicator"]["spec"]["ratioMetric"]
        condition = _condition(_query(indicator.get("good")) or "")
        limit = None if condition is None else condition[1]
    if wrote == {"limit": limit, "target": objective.get("target")}:
        return kept
    notes.append(f"{entry['id']}: its target or limit was changed there, and is taken from there")
    said = {"good", "metric", "percentile", "at_least", "at_most"}
    return {**{k: v for k, v in kept.items() if k not in said}, **entry, "id": kept["id"]}


def _restored(raw: Data, objectives: dict[str, Data]) -> Data:
    """The file with the objectives in their old order, and new ones behind them."""
    file = {"apiVersion": "prony/v1", "kind": "SLOFile", **raw}
    entries: list[Data] = []
    for entry in raw.get("objectives") or []:
        if isinstance(entry, dict):
            entries.append(entry)
        elif entry in objectives:
            entries.append(objectives.pop(entry))
    return {**file, "objectives": [*entries, *objectives.values()]}


def _documents(path: Path) -> list[Data]:
    try:
        found = list(yaml.safe_load_all(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise FileError([f"{path}: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise FileError([f"{path}: not valid YAML: {reason}"]) from None
    documents = []
    for number, document in enumerate((d for d in found if d is not None), start=1):
        if not isinstance(document, dict) or document.get("apiVersion") != API:
            got = document.get("apiVersion") if isinstance(document, dict) else document
            raise FileError([f"{path}: document {number}: apiVersion must be {API}, got {got!r}"])
        if not isinstance(document.get("metadata"), dict) or "name" not in document["metadata"]:
            raise FileError([f"{path}: document {number}: has no metadata.name"])
        documents.append({"kind": None, **document})
    return documents


def _annotations(document: Data) -> Mapping[str, Any]:
    return document["metadata"].get("annotations") or {}


def _annotation(document: Data, name: str) -> Any:
    text = _annotations(document).get(name)
    try:
        return None if text is None else json.loads(str(text))
    except ValueError:
        return None


def _query(source: Any) -> str | None:
    """The PromQL of a metric, in the places where OpenSLO and its tools put it."""
    if not isinstance(source, Mapping):
        return None
    spec = (source.get("metricSource") or {}).get("spec") or {}
    query = spec.get("query") or spec.get("promql")
    return None if query is None else str(query)


def _condition(query: str) -> tuple[str, float] | None:
    """The latency and limit of a query on a bucket of a histogram that we know."""
    match = re.search(r'([A-Za-z_:][\w:]*)_bucket\{[^}]*le=~?"([\d.]+)', query)
    if match is None:
        return None
    for engine in ENGINES.values():
        for metric, series in engine.latencies.items():
            if series.name == match[1]:
                return metric, float(match[2])
    return None


def _over_window(query: str) -> str:
    """A query over the time of the run: whatever window it had, and increases of bare counters."""
    windowed = re.sub(r"\[[^\]]*\]", "[$window]", query)
    if windowed != query:
        return windowed
    return re.sub(r"^sum\((.*)\)$", r"sum(increase(\1[$window]))", query)


def _counter(selector: str) -> str:
    return selector.partition("{")[0]


def _plain(seconds: float) -> str:
    return short_ms(seconds).replace(" ", "")


def _name(text: str) -> str:
    """A name as Kubernetes allows it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63] or "slo"
