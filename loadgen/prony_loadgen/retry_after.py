"""How long a server asks its clients to stay away: headers of an answer go in, seconds come out."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def wait_told(headers: Mapping[str, str], unix_time: float) -> float | None:
    """Seconds by `retry-after-ms` or either form of `Retry-After`; None where neither says it.

    A date counts from the answer's own Date, else from `unix_time`. Never below 0.
    """
    if (seconds := _number(headers.get("retry-after-ms"))) is not None:
        return seconds / 1000
    told = headers.get("retry-after")
    if told is None:
        return None
    if (seconds := _number(told)) is not None:
        return seconds
    until = _moment(told)
    if until is None:
        return None
    sent = _moment(headers.get("date"))
    return max(0.0, until - (unix_time if sent is None else sent))


def _number(text: str | None) -> float | None:
    if text is None or not text.replace(".", "", 1).isdecimal() or len(text) > 12:
        return None
    return float(text)


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
