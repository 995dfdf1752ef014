"""Telemetry to a collector: the environment's OTLP variables in, an exporter that posts JSON out.

OTLP over HTTP in its JSON form, which every collector takes at the same port as protobuf. The
encoder of spans is the one that writes the run folder's traces.jsonl, so no further package is
needed.
"""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal
from urllib.parse import unquote

from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

TRIES: Final = 3
RETRIED: Final = (429, 502, 503, 504)  # as the OTLP specification has it


class Poster:
    """Posts bodies to one URL; what no collector takes is dropped, which is said once."""

    TIMEOUT: ClassVar[float] = 5.0  # seconds for one try

    def __init__(self, what: str, url: str, headers: Mapping[str, str]) -> None:
        self._what, self._url = what, url
        self._headers = {"Content-Type": "application/json", **headers}
        self._failed = False

    def post(self, body: bytes, tries: int = TRIES) -> bool:
        """Whether the collector took it."""
        # Here, because importing it early would load ssl before Locust patches it.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        wrong = ""
        for number in range(tries):
            if number:
                time.sleep(0.2 * 2**number)
            try:
                with urlopen(Request(self._url, body, self._headers), timeout=self.TIMEOUT):
                    return True
            except HTTPError as error:
                wrong = f"{error.code} {error.reason}"
                error.close()
                if error.code not in RETRIED:
                    break
            except (OSError, HTTPException) as error:
                wrong = str(error) or type(error).__name__
        if not self._failed:
            logger.warning("%s are lost: %s does not take them: %s", self._what, self._url, wrong)
        self._failed = True
        return False


def poster_from(
    signal: Literal["traces", "metrics"], environ: Mapping[str, str] = os.environ
) -> Poster | None:
    """The poster that the variables ask for; None where they name no endpoint."""
    url = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    if not url and (base := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        url = f"{base.rstrip('/')}/v1/{signal}"
    if not url:
        return None
    given = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS") or environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    return Poster("spans" if signal == "traces" else "metrics", url, _headers(given))


def exporter_from(environ: Mapping[str, str] = os.environ) -> "HttpSpanExporter | None":
    """The exporter of spans that the variables ask for; None where they name no endpoint."""
    poster = poster_from("traces", environ)
    return None if poster is None else HttpSpanExporter(poster)


class HttpSpanExporter(SpanExporter):
    """Posts spans."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        data = encode_spans(spans)
        if not data.resource_spans or self._poster.post(json.dumps(data.to_dict()).encode()):
            return SpanExportResult.SUCCESS
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _headers(text: str) -> dict[str, str]:
    """`a=b,c=d` with percent escapes, as OTEL_EXPORTER_OTLP_HEADERS holds them."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
