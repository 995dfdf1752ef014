"""Before any load: whether a target can be used. A target goes in, the target and model to use come
out, or a TargetError whose one line names the URL and what would help."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prony_loadgen.client import Client, Request
from prony_loadgen.dialects import Dialect
from prony_loadgen.error_text import shortened
from prony_loadgen.fetch import Fetched, FetchError, fetch
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import Target, TargetError

LIST_TIMEOUT = 10.0
PROBE_TOKENS = 4
KEY_REMEDY = "name the variable that holds its key by --api-key-env (default: OPENAI_API_KEY)"


class Probed(NamedTuple):
    target: Target  # with the base path that the server answers under
    model: str
    record: RequestRecord  # of the probe request


def probe(
    target: Target, dialect: Dialect, model: str | None, *, extra: Mapping[str, Any] | None = None
) -> Probed:
    """Asks for the models, then sends one short streamed request as the load will send them.

    Raises TargetError where load could not work.
    """
    target, model, settled = _find(target, model)
    bases = [target.base_path] if settled else base_paths(target)
    refused = []
    for base in bases:
        at = replace(target, base_path=base)
        record = _ask(at, dialect, model, extra or {})
        if record.status == 404 and not settled and base != bases[-1]:
            refused.append(at.endpoint(dialect.path))
            continue
        _check(record, at.endpoint(dialect.path), refused)
        return Probed(at, model, record)
    raise AssertionError("a target has a base path")


def find_model(target: Target, model: str | None) -> tuple[Target, str]:
    """The target under the base path that lists models, and `model` or the only one it lists.

    Raises TargetError where there is no server, or no one model to choose.
    """
    target, model, _ = _find(target, model)
    return target, model


def base_paths(target: Target) -> list[str]:
    """Where the API may be, the likeliest first: one place where the user's URL says it."""
    given = urlsplit(target.url).path
    return [target.base_path] if given == target.base_path else [target.base_path, given]


def _find(target: Target, model: str | None) -> tuple[Target, str, bool]:
    """The target, the model, and whether the server showed that the base path is right."""
    tried = []
    for base in base_paths(target):
        at = replace(target, base_path=base)
        url = at.endpoint("/models")
        try:
            fetched = fetch(at, f"{base}/models", LIST_TIMEOUT)
        except FetchError as error:
            raise TargetError(f"cannot reach {url}: {error}; is the server running?") from None
        if fetched.status in (401, 403):
            raise TargetError(f"{url} refused us ({fetched.status}); {KEY_REMEDY}")
        models = _listed(fetched)
        if models is not None:
            return at, model or _only(models, url), True
        tried.append(f"{url} ({_what(fetched)})")
    if model is None:
        raise TargetError(
            f"no list of models at {' nor at '.join(tried)}; check the URL, or name the model "
            "by --model"
        )
    return target, model, False


def _listed(fetched: Fetched) -> list[str] | None:
    if fetched.status != 200:
        return None
    try:
        models = json.loads(fetched.body)["data"]
        return [str(entry["id"]) for entry in models]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _what(fetched: Fetched) -> str:
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


def _ask(target: Target, dialect: Dialect, model: str, extra: Mapping[str, Any]) -> RequestRecord:
    body = dialect.body(
        Prompt(text="Hello"), model=model, max_tokens=PROBE_TOKENS, ignore_eos=False, extra=extra
    )
    now = time.monotonic()
    records: list[RequestRecord] = []
    client = Client(target, origin=now, on_record=records.append)
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
        )
    )
    client.close(drain=target.timeouts.connect + target.timeouts.total)
    return records[0]


def _check(record: RequestRecord, url: str, refused: list[str]) -> None:
    """Raises TargetError unless the probe was answered by a stream."""
    if record.outcome == "connect_error":
        raise TargetError(f"cannot reach {url}: {record.error}; is the server running?")
    if record.status in (401, 403):
        raise TargetError(f"{url} refused us ({record.error}); {KEY_REMEDY}")
    if record.status == 404:
        places = " nor ".join([*refused, url])
        raise TargetError(f"not found: {places} ({record.error}); check the URL and --model")
    if record.outcome == "wrong_content_type":
        raise TargetError(f"{url} is not an inference server's: {record.error}; check the URL")
    if not record.ok:
        raise TargetError(f"the probe request to {url} failed: {record.outcome}: {record.error}")
    if "not_streamed" in record.flags:
        raise TargetError(
            f"{url} answers in one piece although a stream was asked for, so no token can be "
            "timed; use a server that streams, or turn off what buffers in between"
        )
