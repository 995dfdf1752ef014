"""What a server answers now, as the reference that later builds are held to.

Each prompt of the file is asked twice, alone and at temperature 0. The rows come out as they went
in, with the answer as `reference` and with the number of tokens that it was asked for. As `checks`
or `prompts.file` of a scenario, and with an SLO that bounds mismatch_share, they fail a build that
answers otherwise: by another temperature, a chat template that changed, weights in too few bits.

  prony references prompts.jsonl --target URL --out expected.jsonl

Left out, and named, are rows that the server refuses, rows whose two answers differ (such a server
would fail its own reference by chance), and rows whose answer is not what they expect already.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.errors import UsageError
from prony.reaching import add_reaching, target_of

if TYPE_CHECKING:
    from prony_loadgen.dialects import Dialect
    from prony_loadgen.prompt_file import Row
    from prony_loadgen.target import Target

HELP = "keep a server's answers as what later builds must say too"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompts", type=Path, metavar="FILE", help="JSONL: a row with a prompt or messages each")
    add("--target", required=True, metavar="URL", help="the server, with or without /v1")
    add("--out", required=True, type=Path, metavar="FILE", help="a new file for the rows")
    add("--dialect", default="openai-chat", metavar="NAME", help="default: openai-chat")
    add("--model", metavar="NAME", help="default: the only one that the server lists")
    add_reaching(parser)


def run(args: argparse.Namespace) -> int:
    from prony_loadgen.dialects import DIALECTS
    from prony_loadgen.probe import probe
    from prony_loadgen.prompt_file import read_prompts

    dialect = DIALECTS.get(args.dialect)
    if dialect is None:
        known = ", ".join(DIALECTS)
        raise UsageError(f"--dialect {args.dialect}: expected one of {known}")
    rows = read_prompts(args.prompts, dialect=args.dialect)
    with _new_file(args.out) as kept:
        target, model, _ = probe(target_of(args), dialect, args.model, extra=dialect.greedy)
        for row in rows:
            answer = _answer(target, dialect, model, row)
            if isinstance(answer, _Unfit):
                print(f"{args.prompts}:{row.line}: left out: {answer.why}", file=sys.stderr)
            else:
                kept.append(json.dumps(_row(row, answer)))
        if not kept:
            raise UsageError(f"{target.url} answers no row of {args.prompts} so that it can be one")
    print(f"{len(kept)} of {len(rows)} answers of {model} kept in {args.out}")
    return 0


class _Unfit:
    """Why there is no reference for a row."""

    def __init__(self, why: str) -> None:
        self.why = why


def _answer(target: "Target", dialect: "Dialect", model: str, row: "Row") -> str | _Unfit:
    """What is answered twice. Raises UsageError where the server does not answer at all."""
    from prony_loadgen.probe import ask

    body = dialect.body(
        row.prompt, model=model, max_tokens=_tokens(row), ignore_eos=False, extra=dialect.greedy
    )
    texts = []
    for _ in range(2):
        record = ask(target, dialect, target.fitted(body), keep_text=True)
        if record.outcome == "connect_error":
            raise UsageError(f"{target.url} does not answer any more: {record.error}")
        if not record.ok:
            return _Unfit(f"{record.outcome}: {record.error}")
        texts.append(record.text or "")
    first, second = texts
    if first != second:
        return _Unfit("two answers differ")
    if not first.strip():
        return _Unfit("an answer without any text")
    if row.expect is not None and not row.expect.met(first):
        return _Unfit(f"the answer is not what the row expects: {first[:60]!r}")
    return first


def _tokens(row: "Row") -> int:
    from prony_loadgen.checks import OUTPUT_TOKENS

    return row.output_tokens or OUTPUT_TOKENS


def _row(row: "Row", reference: str) -> dict[str, Any]:
    """A row of a prompts file; its length is told, since a longer answer would be another."""
    prompt = row.prompt
    asked = {"prompt": prompt.text} if prompt.text is not None else {"messages": prompt.messages}
    told: dict[str, Any] = {**asked, "output_tokens": _tokens(row), "reference": reference}
    if row.expect is not None and row.expect.contains:
        told["contains"] = list(row.expect.contains)
    if row.expect is not None and row.expect.pattern is not None:
        told["pattern"] = row.expect.pattern
    return told


@contextmanager
def _new_file(out: Path) -> Iterator[list[str]]:
    """Lines for a file that is not there yet and can be made; none is left without lines."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.touch(exist_ok=False)
    except FileExistsError:
        raise UsageError(f"--out {out}: is there already; nothing is written over") from None
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    lines: list[str] = []
    try:
        yield lines
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        out.unlink(missing_ok=True)
        raise UsageError(f"--out {out}: {error.strerror}") from None
    except BaseException:
        out.unlink(missing_ok=True)
        raise
