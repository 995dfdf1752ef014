"""What a server says went wrong, as one short line: an error body of any common shape goes in."""

import json
from typing import Any

LONGEST = 300
_FAILED = frozenset({"failed", "failure", "fail"})
# Keys by which an object says that it is something else.
_NAMING = ("type", "object", "event", "status")


def told_error(body: Any) -> str | None:
    """The message and codes of a decoded error object; None where it is not one.

    Servers put them under "error" (an object or a string), at the top level, or under "detail".
    """
    if not isinstance(body, dict):
        return None
    told = body.get("error") or body.get("detail") or body
    if isinstance(told, list) and told:  # FastAPI lists what it found invalid
        told = told[0]
    if isinstance(told, str):
        return shortened(told)
    if not isinstance(told, dict):
        return None
    message = next((told[key] for key in ("message", "msg", "reason") if told.get(key)), None)
    codes = [str(told[key]) for key in ("type", "code") if told.get(key) not in (None, "", "error")]
    if message is None and not codes:
        return None
    line = str(message) if message is not None else ""
    return shortened(f"{line} ({', '.join(codes)})".strip() if codes else line)


def bare_error(chunk: dict[str, Any]) -> str | None:
    """What an object amid a stream tells that is an error without the key "error"; else None.

    For objects that a dialect knows nothing else of: heartbeats and progress look much like it.
    """
    codes = [chunk.get(key) for key in ("status", "status_code", "statusCode", "code")]
    words = [text.lower() for text in (*codes, chunk.get("type")) if isinstance(text, str)]
    named = any(word in _FAILED or "error" in word or "exception" in word for word in words)
    numbered = any(isinstance(code, int) and code >= 400 for code in codes)
    if named or numbered:
        return told_error(chunk) or shortened(json.dumps(chunk))
    if any(chunk.get(key) for key in _NAMING) or chunk.get("code") in (0, 200):
        return None  # {"type": "ping", "message": ...} says what it is
    # Alone it is the last word of a gateway or framework.
    message = chunk.get("message") or chunk.get("msg")
    return told_error(chunk) if isinstance(message, str) or chunk.get("detail") else None


def error_line(body: bytes) -> str | None:
    """The same for a body as it came: its message where it is JSON, else its first bytes."""
    text = body.decode("utf-8", "replace").strip()
    try:
        told = told_error(json.loads(text))
    except (ValueError, RecursionError):
        told = None
    return told or (shortened(text) if text else None)


def shortened(text: str) -> str:
    """On one line, no longer than a line should be, with nothing that a terminal would obey."""
    line = " ".join(text[: 4 * LONGEST].split())
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
