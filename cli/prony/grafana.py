"""A Grafana of the user's: its URL and the environment's credential go in, its API comes out.

GRAFANA_TOKEN is a service account's token; GRAFANA_USER and GRAFANA_PASSWORD are the other way.
Neither may stand on a command line, where every process of the machine can read it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prony.errors import UsageError


def connect(
    url: str, token_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Any:
    """A grafana_client.GrafanaApi; nothing is asked yet. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--grafana {_shown(url)}: expected http://HOST:PORT or https://HOST")
    if parts.username or parts.password:
        raise UsageError(
            f"--grafana {_shown(url)}: no credential in a URL; set GRAFANA_TOKEN, or GRAFANA_USER "
            "and GRAFANA_PASSWORD"
        )
    from grafana_client.api import GrafanaApi

    return GrafanaApi.from_url(url, credential=_credential(token_file, environ), timeout=10)


def _credential(
    token_file: Path | None, environ: Mapping[str, str]
) -> str | tuple[str, str] | None:
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"--token-file {token_file}: {error.strerror}") from None
        if not token:
            raise UsageError(f"--token-file {token_file}: it is empty")
        return token
    if environ.get("GRAFANA_TOKEN"):
        return environ["GRAFANA_TOKEN"]
    if environ.get("GRAFANA_USER"):
        return environ["GRAFANA_USER"], environ.get("GRAFANA_PASSWORD", "")
    return None


def _shown(url: str) -> str:
    """The URL without what stands before its host."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
