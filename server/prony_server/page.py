"""The page that /metrics answers with: series and an Accept header in, bytes and their type out."""

from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector


def page(series: Collector, accept: str) -> tuple[bytes, str]:
    """Prometheus text, or OpenMetrics where asked for, which alone carries exemplars."""
    encode, content_type = choose_encoder(accept)
    if content_type.startswith("application/openmetrics-text"):
        # Asked to escape names, prometheus_client 0.22-0.26 also writes a sample's colon as "_",
        # though not its TYPE line's (client_python#1177). No name here is in need of escaping.
        write: Any = openmetrics.generate_latest
        return write(series, openmetrics.ALLOWUTF8, "1.0.0"), content_type
    return encode(series), content_type
