"""What nobody means: absurd sizes, what JSON cannot hold, depth, combinations. One text, exit 2."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_gate import gate
from tests.loadgen.fake_server import FakeServer

from prony_loadgen.folder import RunFolder

DEEP = "[" * 20_000 + "]" * 20_000
DEEP_YAML = "[" * 2_000 + "]" * 2_000  # PyYAML takes minutes for more
LONG = "n" * 5_000
DRY = ("run", "--dry-run", "--no-probe")
DEEP_TRACE = '{"at": 0, "input_tokens": 5, "output_tokens": ' + DEEP + "}"
SMALL = "prompts: {input_tokens: 8}\narrivals: {rate: 5}\nduration: 5s\n"


def refused(*argv: str | Path, cwd: Path, **environ: str) -> str:
    code, text = gate(*argv, cwd=cwd, **environ)
    assert code == 2, text
    return text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--duration", "999999h"), "--duration: must be at most 7 days"),
        (("--warmup", "999999h"), "--warmup: must be at most 7 days"),
        (("--requests", "1000000000000"), "--requests: must be at most 10000000"),
        (("--input-tokens", "10000000000"), "--input-tokens.value: must be at most 10000000"),
        (("--output-tokens", "1..10000000000"), "--output-tokens.max: must be at most"),
        (
            ("--input-tokens", "{distribution: lognormal, median: 1e308, sigma: 5}"),
            "--input-tokens.median: must be at most",
        ),
        (("--rate", "5e-324"), "--rate: must be at least 0.000001"),
        (("--rate", "1e-6", "--requests", "9"), "would be longer than 7 days"),
        (("--rate", "100000", "--duration", "1h"), "about 360,200,000 requests would be sent"),
        (
            ("--set", "arrivals.on_off={'on': 1us, 'off': 1us}", "--duration", "1h"),
            "arrivals.on_off: more than 100,000 turns",
        ),
        (("--set", "turns={count: 99999}"), "--set turns.count: must be at most 1,000"),
        (
            ("--set", "prompts.prefix={tokens: 8, branches: 99999999999}"),
            "tokens and branches must be at most 10,000,000",
        ),
        (("--set", "timeouts.drain=999999h"), "--set timeouts.drain: must be at most 7 days"),
        (("--processes", "100000"), "--processes 100000: expected 1 to 256"),
        (("--metrics-port", "99999"), "--metrics-port: must be a port in 0..65535"),
        (("--web-port", "-1"), "--web-port: must be a port in 0..65535"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_size_that_nobody_means_is_refused_at_the_edge(
    options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    warm = () if "--warmup" in options else ("--warmup", "2s")
    assert told in refused(*DRY, *warm, *options, cwd=tmp_path)


def test_a_warm_up_that_the_slo_asks_for_has_a_bound_too(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text(
        "measure: {warmup: 999999h}\nobjectives: [{id: a, good: {ttft: 1s}, at_least: 50%}]\n"
    )
    (tmp_path / "s.yaml").write_text(SMALL)
    text = refused(*DRY, "s.yaml", "--slo", "slo.yaml", cwd=tmp_path)
    assert "measure.warmup must be at most 7 days" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rate", "5", "--concurrency", "5"), "--rate with --concurrency: arrivals: closed has"),
        (("--set", "foo.bar=1"), "--set foo.bar: foo: unknown key"),
        (("--concurrency", "5", "--set", "arrivals.cv=2"), "--concurrency with --set arrivals.cv:"),
        (("--prompts", "a", "--input-tokens", "5"), "--input-tokens with --prompts: prompts:"),
    ],
    ids=str,
)
def test_what_only_options_together_do_wrong_names_them_and_not_a_file(
    options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    text = refused(*DRY, *options, cwd=tmp_path)
    assert told in text and "chat.yaml" not in text


def test_what_the_file_does_wrong_names_the_file_whatever_the_options(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL.replace("{rate: 5}", "{process: gamma, rate: 5}"))
    text = refused(*DRY, "s.yaml", "--rate", "7", cwd=tmp_path)
    assert "s.yaml:2: arrivals: gamma needs cv" in text


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{when: 2024-01-01}", "when is a date"),
        ("{when: 2024-01-01 10:00:00}", "when is a datetime"),
        ("{raw: !!binary aGk=}", "raw is a bytes"),
        ("{some: !!set {a, b}}", "some is a set"),
        ("{deep: [1, {x: .nan}]}", "deep[1].x is nan"),
        ("&all {me: *all}", "nested"),
        ("{a: &a [1,1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], "
         "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], "
         "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d], f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]}",
         "more than"),
    ],
)  # fmt: skip
def test_a_body_that_json_cannot_hold_is_told_by_its_place(
    body: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(f"{SMALL}extra_body: {body}\n")
    text = refused(*DRY, "s.yaml", cwd=tmp_path)
    assert "s.yaml:4: extra_body: " in text and told in text


def test_what_is_nested_too_deeply_is_told_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{SMALL}extra_body: {{a: {DEEP_YAML}}}\n")
    (tmp_path / "slo.yaml").write_text(f"objectives: {DEEP_YAML}\n")
    (tmp_path / "p.jsonl").write_text(f'{{"messages": {DEEP}}}\n')
    (tmp_path / "l.json").write_text(f'[{{"conversations": {DEEP}}}]\n')
    (tmp_path / "t.jsonl").write_text(DEEP_TRACE + "\n")
    (tmp_path / "r").mkdir()
    (tmp_path / "r/run.json").write_text(DEEP)
    trace = "arrivals={process: trace, trace: {file: t.jsonl, format: jsonl, unit: s}}"
    for argv in (
        (*DRY, "s.yaml"),
        (*DRY, "--slo", "slo.yaml"),
        ("gate", "--check", "slo.yaml"),
        (*DRY, "--extra-body", DEEP),
        (*DRY, "--prompts", "p.jsonl"),
        (*DRY, "--prompts", "l.json", "--set", "prompts.format=sharegpt"),
        (*DRY, "--set", trace),
        (*DRY, "--set", f"extra_body={DEEP_YAML}"),
        ("gate", "r"),
    ):
        text = refused(*argv, cwd=tmp_path)
        assert len(text) < 1000, text[:2000]


@pytest.mark.parametrize(
    "argv",
    [
        ("run", LONG),
        ("run", "--dry-run", "--no-probe", "--slo", LONG),
        ("run", "--dry-run", "--no-probe", "--prompts", LONG),
        ("run", "--dry-run", "--no-probe", "--set", f"checks={LONG}"),
        ("gate", LONG),
        ("report", LONG),
        ("gate", "--check", LONG),
        ("compare", LONG, LONG),
        ("replay", LONG),
        ("rules", LONG),
        ("serve", LONG),
        ("baseline", "accept", LONG),
    ],
    ids=lambda argv: " ".join(argv)[:30],
)
def test_a_name_longer_than_any_file_has_is_not_found(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    assert LONG[:40] in refused(*argv, cwd=tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--traces", "no/such/spans.jsonl"), "--traces no/such/spans.jsonl: No such file"),
        (("--served-model-name", ""), "served_model_name must not be empty"),
        (("--num-gpu-blocks-override", "99999999999"), "num_gpu_blocks 99,999,999,999 need"),
        (("--max-num-seqs", "999999999999"), "max_num_seqs 999,999,999,999 need"),
        (("--torch-threads", "99999999999"), "torch_threads must be at most 1024"),
        (("--batching", "none", "--max-num-seqs", "4"), "max_num_seqs must be 1 or absent"),
        (("--gpu-memory-utilization", "nan"), "gpu_memory_utilization must be above 0"),
        (("--port", "70000"), "65535"),
    ],
    ids=str,
)
def test_a_server_that_cannot_be_had_is_refused_before_it_starts(
    options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    assert told in refused("serve", "tiny", *options, cwd=tmp_path)


def test_the_scenarios_slo_lies_beside_it_and_is_named_by_its_key(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "s.yaml").write_text(f"{SMALL}slo: mine.yaml\n")
    text = refused(*DRY, "there/s.yaml", cwd=tmp_path)
    assert "the scenario's slo: there/mine.yaml: no such file" in text and "--slo" not in text
    (there / "mine.yaml").write_text("objectives: [{id: a, good: {ttft: 1s}, at_least: 50%}]\n")
    code, text = gate(*DRY, "there/s.yaml", "--requests", "99", cwd=tmp_path)
    assert code == 0 and "a: needs at least 30 measured requests" in text
    (there / "s.yaml").write_text(f"{SMALL}slo: chatt\n")
    text = refused(*DRY, "there/s.yaml", cwd=tmp_path)
    assert "the scenario's slo: chatt: no file" in text and "did you mean 'chat'" in text
    # Switched off, it is not even looked for.
    code, text = gate(*DRY, "there/s.yaml", "--set", "slo=null", cwd=tmp_path)
    assert code == 0 and "slo" not in text


class Torn(FakeServer):
    """Its model's name holds half of a surrogate pair, which UTF-8 cannot."""

    def listed(self) -> dict[str, Any]:
        return {"id": "torn\ud800"}


@pytest.fixture
def torn() -> Iterator[Torn]:
    with Torn() as server:
        yield server


def test_half_a_surrogate_pair_is_sent_kept_and_shown(tmp_path: Path, torn: Torn) -> None:
    (tmp_path / "s.yaml").write_text(
        f'{SMALL}description: "d\\uD800"\nextra_body: {{note: "n\\uD800"}}\n'
    )
    load = ("--requests", "60", "--concurrency", "4", "--warmup", "0s", "--slo", "errors < 95%")
    code, text = gate("run", "s.yaml", "--target", torn.url, "--out", "out", *load, cwd=tmp_path)
    assert code == 0, text
    facts = RunFolder(tmp_path / "out").read_run()
    assert facts["scenario"]["description"] == "d\ud800"
    assert facts["target"]["model"] == torn.bodies[-1]["model"] == "torn\ud800"
    assert torn.bodies[-1]["note"] == "n\ud800"
    for name in ("run.json", "verdict.json"):
        json.loads((tmp_path / "out" / name).read_text(encoding="utf-8"))
    assert gate("report", "out", cwd=tmp_path)[0] == 0
