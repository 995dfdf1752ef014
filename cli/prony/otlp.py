"""Spans to a collector: the environment's OTLP variables in, an exporter that posts JSON out.

OTLP over HTTP in its JSON form, which every collector takes at the same port as protobuf. The
encoder is the one that writes the run folder's traces.jsonl, so no further package is needed.
"""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

TRIES: Final = 3
TIMEOUT: Final = 5.0  # seconds for one try
RETRIED: Final = (429, 502, 503, 504)  # as the OTLP specification has it


def exporter_from(environ: Mapping[str, str] = os.environ) -> "HttpSpanExporter | None":
    """The exporter that the variables ask for; None where they name no endpoint."""
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not url and (base := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        url = base.rstrip("/") + "/v1/traces"
    if not url:
        return None
    given = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    return HttpSpanExporter(url, _headers(given))


class HttpSpanExporter(SpanExporter):
    """Posts spans; where no collector takes them they are dropped, which is said once."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        # Here, because importing it early would load ssl before Locust patches it.
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        data = encode_spans(spans)
        if not data.resource_spans:
            return SpanExportResult.SUCCESS
        body = json.dumps(data.to_dict()).encode()
        wrong = ""
        for number in range(TRIES):
            if number:
                time.sleep(0.2 * 2**number)
            try:
                with urlopen(Request(self._url, body, self._headers), timeout=TIMEOUT):
                    return SpanExportResult.SUCCESS
            except HTTPError as error:
                wrong = f"{error.code} {error.reason}"
                error.close()
                if error.code not in RETRIED:
                    break
            except OSError as error:
                wrong = str(error)
        if not self._failed:
            logger.warning("spans are lost: %s does not take them: %s", self._url, wrong)
        self._failed = True
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _headers(text: str) -> dict[str, str]:
    """`a=b,c=d` with percent escapes, as OTEL_EXPORTER_OTLP_HEADERS holds them."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
