"""What a Prometheus says of a run: a query and a moment go in, one number or nothing comes out.

`$window` in a query stands for the time that was measured, so that `avg_over_time(x[$window])`
at its end is the mean over the run.
"""

import json
import math
import urllib.error
import urllib.parse
from collections.abc import Callable

TIMEOUT = 10.0  # seconds

# (query, Unix time) -> its only value; None where it is empty or NaN. Raises QueryError.
Reader = Callable[[str, float], float | None]


class QueryError(ValueError):
    """Why there is no answer: nobody there, a wrong query, or several values."""


def fill_in(promql: str, seconds: float) -> str:
    """The query with `$window` as Prometheus writes durations, to the millisecond."""
    return promql.replace("$window", f"{max(1, round(seconds * 1000))}ms")


def http_reader(url: str) -> Reader:
    """Asks the Prometheus (or whatever speaks its HTTP API) at `url`."""

    # Here, because it imports ssl, which locust wants to patch before anybody else sees it.
    import urllib.request

    def read(query: str, at: float) -> float | None:
        form = urllib.parse.urlencode({"query": query, "time": f"{at:.3f}"})
        address = f"{url.rstrip('/')}/api/v1/query?{form}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            raise QueryError(f"{url}: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            raise QueryError(f"{url}: {getattr(error, 'reason', None) or error}") from None
        return only_value(body, query)

    return read


def only_value(body: bytes, query: str) -> float | None:
    """The number of an answer of /api/v1/query; None where it is empty or NaN."""
    try:
        data = json.loads(body)["data"]
        samples = [data] if data["resultType"] == "scalar" else data["result"]
        values = [
            float(sample["value" if "value" in sample else "result"][1]) for sample in samples
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise QueryError(f"{query}: not the answer of a Prometheus ({error!r})") from None
    if len(values) > 1:
        raise QueryError(f"{query} has {len(values)} values; aggregate them, as in sum(...)")
    return None if not values or math.isnan(values[0]) else values[0]


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read())["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
    return str(told)
