"""Load from Locust, timed per token: `from prony_loadgen import LLMUser` in a locustfile."""

from typing import Any

__all__ = ["LLMUser"]


def __getattr__(name: str) -> Any:
    # Importing locust patches the process's sockets and threads, so it waits until asked for.
    if name == "LLMUser":
        from prony_loadgen.locust_user import LLMUser

        return LLMUser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
