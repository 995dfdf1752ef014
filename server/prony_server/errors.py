"""What goes wrong with a request, in OpenAI's shape: the place, the value and what was expected."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class ApiError(Exception):
    """A request that gets an error answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": code},
        }


def refuse(param: str, problem: str, code: str | None = "invalid_value") -> NoReturn:
    raise ApiError(400, f"{param} {problem}", param=param, code=code)


def named(value: Any) -> str:
    """The value for an error message, short however long it is."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:  # it was read at a depth that is already too much here
        return "something nested too deep to be shown"
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
