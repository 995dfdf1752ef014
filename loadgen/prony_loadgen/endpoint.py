"""Whom to talk to: what scenario, command line and environment say in, a Target and a model out."""

import os
import re
from collections.abc import Mapping

from prony_loadgen.dialects import DIALECTS
from prony_loadgen.probe import find_model, probe
from prony_loadgen.scenario import Scenario, Talk
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import Retry, Target, TargetError, Timeouts, parse_target
from prony_loadgen.tls import TlsOptions

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def reach(
    talk: Talk, url: str | None, api_key_env: str | None, *, probing: bool = True
) -> tuple[Target, str]:
    """The target and the model to use, after one request has shown that load can work.

    Without `probing` a model that is named is believed. Raises TargetError or FileError.
    """
    target = find_endpoint(talk, url, api_key_env, os.environ)
    if probing:
        found = probe(
            target,
            DIALECTS[talk.dialect],
            talk.model,
            extra=talk.extra_body,
            ignore_eos=isinstance(talk, Scenario) and talk.output.mode == "forced",
        )
        return found.target, found.model
    if talk.model is not None:
        return target, talk.model
    return find_model(target, None, DIALECTS[talk.dialect])


def find_endpoint(
    talk: Talk, url: str | None, api_key_env: str | None, environ: Mapping[str, str]
) -> Target:
    """The target: `url` (from an option), else the scenario's, else OPENAI_BASE_URL.

    The key is in the variable that `api_key_env` names, else in OPENAI_API_KEY if that is set.
    Raises TargetError or FileError, which name what is missing.
    """
    found = url or talk.target or environ.get("OPENAI_BASE_URL")
    if not found:
        raise TargetError(
            "no target: name one by --target http://HOST:PORT (or -H with locust), "
            "by `target:` in the scenario, or in OPENAI_BASE_URL"
        )
    return parse_target(
        found,
        headers=[(name, _filled(name, value, environ)) for name, value in talk.headers.items()],
        api_key=_key(api_key_env, environ),
        timeouts=Timeouts(
            connect=talk.timeouts.connect,
            first_token=talk.timeouts.first_token,
            total=talk.timeouts.total,
            between_tokens=talk.timeouts.between_tokens,
        ),
        retry=None if talk.retry is None else Retry(talk.retry.max, talk.retry.honour_retry_after),
        tls=TlsOptions(
            ca=talk.tls.ca,
            cert=talk.tls.cert,
            key=talk.tls.key,
            insecure=talk.tls.insecure,
        ),
        proxy=talk.proxy,
        environ=environ,
    )


def named(url: str, api_key_env: str | None, tls: TlsOptions) -> Target:
    """The target of a command that has no scenario. Raises TargetError."""
    key = _key(api_key_env, os.environ)
    return parse_target(url, api_key=key, tls=tls, environ=os.environ)


def _key(api_key_env: str | None, environ: Mapping[str, str]) -> str | None:
    if api_key_env is not None and not environ.get(api_key_env):
        raise TargetError(f"--api-key-env: the environment variable {api_key_env} is not set")
    return environ.get(api_key_env or "OPENAI_API_KEY") or None


def _filled(name: str, value: str, environ: Mapping[str, str]) -> str:
    """The header's value with each ${NAME} replaced from the environment."""

    def of_environment(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise FileError([f"header {name}: the environment variable {match[1]} is not set"])
        return environ[match[1]]

    return _VARIABLE.sub(of_environment, value)
