"""The dialects by name: plain data, looked up by the client and the scenario."""

from prony_loadgen.dialects.dialect import Dialect, DialectError, Output, Said
from prony_loadgen.dialects.openai import CHAT, COMPLETIONS

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (CHAT, COMPLETIONS)}

__all__ = ["DIALECTS", "Dialect", "DialectError", "Output", "Said"]
