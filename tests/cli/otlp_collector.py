"""An OTLP receiver over HTTP, for tests: what it is sent, decoded by OpenTelemetry's classes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto_json.collector.metrics.v1.metrics_service import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto_json.collector.trace.v1.trace_service import ExportTraceServiceRequest

from prony_dashboards.served import served


class Collector:
    """Listens at `url`; answers with `statuses` in turn, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Any] = []
        self.metrics: list[list[Any]] = []  # of each export
        self.resources: list[dict[str, str]] = []  # of each export of metrics
        self.url = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.paths.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200 and path == "/v1/metrics":
            told = ExportMetricsServiceRequest.from_dict(json.loads(body))
            (resource,) = told.resource_metrics
            (scope,) = resource.scope_metrics
            self.metrics.append(scope.metrics)
            assert resource.resource is not None
            self.resources.append(words(resource.resource.attributes))
        elif status == 200:
            request = ExportTraceServiceRequest.from_dict(json.loads(body))
            self.spans += [
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return status

    @contextmanager
    def listening(self) -> Iterator["Collector"]:
        take = self.take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(take(self.path, dict(self.headers), body))
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None:
                pass

        with served(Handler) as self.url:
            yield self


def words(attributes: list[Any]) -> dict[str, str]:
    """Attributes that are all strings."""
    return {each.key: each.value.string_value for each in attributes}
