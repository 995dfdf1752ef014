"""The dialects by name: plain data, looked up by the client and the scenario."""

from prony_loadgen.dialects.anthropic import ANTHROPIC
from prony_loadgen.dialects.dialect import Dialect, DialectError, Output, Said
from prony_loadgen.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from prony_loadgen.dialects.openai import CHAT, COMPLETIONS
from prony_loadgen.dialects.responses import RESPONSES
from prony_loadgen.dialects.tgi import TGI

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (CHAT, COMPLETIONS, RESPONSES, ANTHROPIC, OLLAMA_CHAT, OLLAMA_GENERATE, TGI)
}

__all__ = ["DIALECTS", "Dialect", "DialectError", "Output", "Said"]
