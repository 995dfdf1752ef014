"""Before any load: whether a target can be used. A target goes in, the target and model to use come
out, or a TargetError whose one line names the URL and what would help.

What can be found out is found out here, so that nobody has to say it: under which path the API
lies, which model there is, and which of our fields the server refuses.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from prony_loadgen.client import Client, Request
from prony_loadgen.dialects import DIALECTS, Dialect
from prony_loadgen.error_text import error_line, shortened
from prony_loadgen.fetch import Fetched, FetchError, fetch
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import Target, TargetError, Timeouts

LIST_TIMEOUT = 10.0
PROBE_TOKENS = 4
KEY_REMEDY = "name the variable that holds its key by --api-key-env (default: OPENAI_API_KEY)"
# How long the probe waits for a token; a longer timeouts.first_token of the scenario holds instead.
# A model may be loaded for this first request, so a shorter one is not held against it.
PATIENCE = 30.0
# When it says what it waits for.
SAYS_AFTER = 2.0
# A gateway that asks us to wait is waited for, this long in all and so many times.
LONGEST_WAIT, MOST_WAITS = 30.0, 3
# Fields that not every server takes, and what is lost without each.
OPTIONAL_FIELDS = {
    "stream_options": "output tokens are counted by chunks unless the server reports usage anyway",
    "ignore_eos": "answers may be shorter than asked for",
}
# Fields that some servers take under another name only: OpenAI's reasoning models.
OTHER_NAMES = {"openai-chat": {"max_tokens": "max_completion_tokens"}}


class Probed(NamedTuple):
    target: Target  # with the base path that the server answers under, and what it refuses
    model: str
    record: RequestRecord  # of the probe request


def probe(
    target: Target,
    dialect: Dialect,
    model: str | None,
    *,
    extra: Mapping[str, Any] | None = None,
    ignore_eos: bool = False,
) -> Probed:
    """Asks for the models, then sends one short streamed request as the load will send them.

    Raises TargetError where load could not work.
    """
    target, model, settled = _find(target, dialect, model)
    bases = [target.base_path] if settled else base_paths(target, dialect)
    refused = []
    for base in bases:
        at = replace(target, base_path=base)
        url = at.endpoint(dialect.path, versioned=dialect.versioned)
        record, fitting = _ask_until_it_fits(at, dialect, model, extra or {}, ignore_eos)
        if record.status == 404 and not settled and base != bases[-1]:
            refused.append(url)
            continue
        _check(record, url, refused)
        notes = tuple(_notes(dialect, record, url, fitting, ignore_eos))
        return Probed(replace(fitting, notes=notes), model, record)
    raise AssertionError("a target has a base path")


def find_model(
    target: Target, model: str | None, dialect: Dialect = DIALECTS["openai-chat"]
) -> tuple[Target, str]:
    """The target under the base path that lists models, and `model` or the only one it lists.

    Raises TargetError where there is no server, or no one model to choose.
    """
    target, model, _ = _find(target, dialect, model)
    return target, model


def base_paths(target: Target, dialect: Dialect) -> list[str]:
    """Where the API may be, the likeliest first: one place where the user's URL says it."""
    if target.given_path == target.base_path or not dialect.versioned:
        return [target.base_path]
    return [target.base_path, target.given_path]


def _find(target: Target, dialect: Dialect, model: str | None) -> tuple[Target, str, bool]:
    """The target, the model, and whether the server showed that the base path is right."""
    tried = []
    for base in base_paths(target, dialect):
        at = replace(target, base_path=base)
        url = at.endpoint(dialect.models_path, versioned=dialect.versioned)
        path = at.path(dialect.models_path, versioned=dialect.versioned)
        try:
            fetched = fetch(at, path, LIST_TIMEOUT, headers=dialect.headers)
        except FetchError as error:
            raise TargetError(_unreachable(url, str(error))) from None
        if fetched.status in (401, 403):
            raise TargetError(f"{url} refused us ({fetched.status}); {KEY_REMEDY}")
        if fetched.status == 503 and model is None:
            raise TargetError(_not_ready(url, _line(fetched)))
        models = _listed(fetched)
        if models is not None:
            chosen = model or _only(models, url)
            return replace(at, context=_context(fetched, chosen)), chosen, True
        tried.append(f"{url} ({_what(fetched)})")
    if model is None:
        raise TargetError(
            f"no list of models at {' nor at '.join(tried)}; check the URL, or name the model "
            "by --model"
        )
    return target, model, False


def _unreachable(url: str, why: str) -> str:
    # Where TLS or a proxy is the reason, the reason itself says what would help.
    remedy = "" if ";" in why else "; is the server running?"
    return f"cannot reach {url}: {why}{remedy}"


def _not_ready(url: str, told: str) -> str:
    return f"{url} answers {told}: the server is not ready; wait until it is, then run again"


def _line(fetched: Fetched) -> str:
    """Its status and what its body says, as one line."""
    told = error_line(fetched.body)
    return f"{fetched.status} ({told})" if told else str(fetched.status)


def _listed(fetched: Fetched) -> list[str] | None:
    """OpenAI lists {"data": [{"id"}]}, Ollama {"models": [{"name"}]}; TGI has its one model_id."""
    if fetched.status != 200:
        return None
    try:
        told = json.loads(fetched.body)
        if "model_id" in told:
            return [str(told["model_id"])]
        if "models" in told and "data" not in told:
            return [str(entry["name"]) for entry in told["models"]]
        return [str(entry["id"]) for entry in told["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _context(fetched: Fetched, model: str) -> int | None:
    """The tokens that a prompt and its answer may have together, where the list tells."""
    told = json.loads(fetched.body)
    entries = [told, *(told.get("data") or ())]  # TGI tells it of itself, others of each model
    for entry in entries:
        most = entry.get("max_total_tokens") or entry.get("max_model_len")
        if entry.get("id", model) == model and isinstance(most, int) and most > 0:
            return most
    return None


def _what(fetched: Fetched) -> str:
    if fetched.status >= 500:
        return _line(fetched)
    if fetched.status != 200:
        return str(fetched.status)
    return f"{fetched.headers.get('content-type', 'no content type')}, not a list of models"


def _only(models: list[str], url: str) -> str:
    if not models:
        raise TargetError(f"{url} lists no model; load one, or name it by --model")
    if len(models) > 1:
        names = shortened(", ".join(models))
        raise TargetError(f"{url} lists {len(models)} models; choose one by --model: {names}")
    return models[0]


def _ask_until_it_fits(
    target: Target, dialect: Dialect, model: str, extra: Mapping[str, Any], ignore_eos: bool
) -> tuple[RequestRecord, Target]:
    """The record of the probe, and the target with what had to be left out or renamed for it."""
    body = dialect.body(
        Prompt(text="Hello"),
        model=model,
        max_tokens=PROBE_TOKENS,
        ignore_eos=ignore_eos,
        extra=extra,
    )
    first = ask(target, dialect, body)
    if first.status not in (400, 422):
        return first, target
    told, fitting = first, target
    renamed = {
        old: new
        for old, new in OTHER_NAMES.get(dialect.name, {}).items()
        if old in body and (old in (first.error or "") or new in (first.error or ""))
    }
    if renamed:
        fitting = replace(target, renamed=tuple(renamed.items()))
        told = ask(fitting, dialect, fitting.fitted(body))
        if told.ok:
            return told, fitting
    for fields in _suspects(told.error or "", [f for f in OPTIONAL_FIELDS if f in body]):
        less = replace(fitting, left_out=fields)
        record = ask(less, dialect, less.fitted(body))
        if record.ok:
            return record, less
    return first, target


def _suspects(error: str, sent: list[str]) -> list[tuple[str, ...]]:
    """The sets of fields that may be what a server refuses, the likeliest first."""
    named = tuple(field for field in sent if field in error)
    sets = [named, *((field,) for field in sent), tuple(sent)]
    return list(dict.fromkeys(fields for fields in sets if fields))


def ask(
    target: Target, dialect: Dialect, body: Mapping[str, Any], *, keep_text: bool = False
) -> RequestRecord:
    """One request; again, where the server asks us to wait first, and not for too long."""
    waited = 0.0
    for _ in range(MOST_WAITS):
        record = _send(target, dialect, body, keep_text)
        wait = record.retry_after
        if record.status not in (429, 503) or wait is None or waited + wait > LONGEST_WAIT:
            break
        waited += wait
        time.sleep(wait)
    return record


def patience(timeouts: Timeouts) -> float:
    """Seconds that a probe waits for a token."""
    return min(max(PATIENCE, timeouts.first_token or 0.0), timeouts.total)


def _send(
    target: Target, dialect: Dialect, body: Mapping[str, Any], keep_text: bool
) -> RequestRecord:
    limit = patience(target.timeouts)
    patient = replace(target.timeouts, first_token=limit, between_tokens=limit)
    now = time.monotonic()
    records: list[RequestRecord] = []
    once = replace(target, timeouts=patient, retry=None)
    client = Client(once, origin=now, on_record=records.append)
    client.start()
    client.submit(
        Request(
            id="probe",
            cls="probe",
            dialect=dialect.name,
            body=json.dumps(body).encode(),
            intended=now,
            trace_id=os.urandom(16).hex(),
            span_id=os.urandom(8).hex(),
            keep_text=keep_text,
        )
    )
    url = target.endpoint(dialect.path, versioned=dialect.versioned)
    line = f"waiting for {url} to answer one short request, for up to {limit:g} s"
    telling = threading.Timer(min(SAYS_AFTER, limit / 2), print, (line,), {"file": sys.stderr})
    telling.daemon = True
    telling.start()
    try:
        client.close(drain=target.timeouts.connect + target.timeouts.total)
    finally:
        telling.cancel()
    return records[0]


def _notes(
    dialect: Dialect,
    record: RequestRecord,
    url: str,
    target: Target,
    ignore_eos: bool,
) -> Iterator[str]:
    """What people should know of the target before its load, a line each."""
    for old, new in target.renamed:
        yield f"{url} refuses {old}, so it is sent as {new}"
    for field in target.left_out:
        yield f"{url} refuses {field}, so it is left out: {OPTIONAL_FIELDS[field]}"
    if ignore_eos and not dialect.ignores_eos:
        yield f"{dialect.name} has no ignore_eos: {OPTIONAL_FIELDS['ignore_eos']}"
    if record.model_load:
        yield f"the server loaded its model for the probe, for {record.model_load:.1f} s"


def _check(record: RequestRecord, url: str, refused: list[str]) -> None:
    """Raises TargetError unless the probe was answered by a stream."""
    if record.outcome == "connect_error":
        raise TargetError(_unreachable(url, record.error or ""))
    if record.status in (401, 403):
        raise TargetError(f"{url} refused us ({record.error}); {KEY_REMEDY}")
    if record.status == 404:
        places = " nor ".join([*refused, url])
        raise TargetError(f"not found: {places} ({record.error}); check the URL and --model")
    if record.outcome == "wrong_content_type":
        raise TargetError(f"{url} is not an inference server's: {record.error}; check the URL")
    if record.outcome == "redirect":
        raise TargetError(f"{url} answers {record.error}; name that address by --target")
    if record.status == 503:
        raise TargetError(_not_ready(url, record.error or "503"))
    if record.outcome == "timeout":
        raise TargetError(
            f"{url} took the probe request, and then came {record.error}; where it is loading its "
            "model, wait until it answers (curl), or set timeouts.first_token to what it needs"
        )
    if record.status == 429:
        raise TargetError(
            f"{url} has no room for us: {record.error}; wait, or raise the limit of this key"
        )
    if not record.ok:
        raise TargetError(f"the probe request to {url} failed: {record.outcome}: {record.error}")
    if "not_streamed" in record.flags:
        raise TargetError(
            f"{url} answers in one piece although a stream was asked for, so no token can be "
            "timed; use a server that streams, or turn off what buffers in between"
        )
