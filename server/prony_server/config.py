"""What `prony serve` was asked for: one frozen value, checked once, that the whole server reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MOST_THREADS = 1024


class ConfigError(ValueError):
    """A setting that cannot work; names the setting, its value and what was expected."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The limits carry vLLM's names, so that a command line can be carried over.

    `None` means "decide from the model and the machine"; what was decided is logged at start.
    """

    model: str  # "tiny", a folder in transformers' format, or a name on the model hub
    device: str = "auto"  # auto | cuda | cuda:N | cpu
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one; the address is told to `ready` and in the log
    served_model_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    batching: Literal["continuous", "static"] = "continuous"
    drain_seconds: float = 30.0  # how long running streams may go on after SIGTERM
    write_timeout: float = 60.0  # a client that reads nothing for so many seconds is cut
    torch_threads: int | None = None

    @property
    def name(self) -> str:
        """What clients must call the model: a folder's own name, or the name as given."""
        if self.served_model_name is not None:
            return self.served_model_name
        folder = Path(self.model).expanduser()
        if self.model != "tiny" and folder.is_dir():
            return folder.resolve().name
        return self.model

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must be 'tiny', a folder or a hub name, got an empty string")
        try:
            Path(self.model).expanduser().is_dir()
        except (OSError, RuntimeError) as error:  # too long a name, a home that nobody has
            raise ConfigError(f"model {self.model:.60}: {error.args[-1]}") from None
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ConfigError("served_model_name must not be empty")
        if self.torch_threads is not None and self.torch_threads > MOST_THREADS:
            raise ConfigError(
                f"torch_threads must be at most {MOST_THREADS}, got {self.torch_threads}"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must lie in 0..65535, got {self.port}")
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_gpu_blocks_override",
            "torch_threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.batching not in ("continuous", "static"):
            raise ConfigError(f"batching must be continuous or static, got {self.batching!r}")
        if not (math.isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise ConfigError(f"drain_seconds must be 0 or more, got {self.drain_seconds}")
        if not (math.isfinite(self.write_timeout) and self.write_timeout > 0):
            raise ConfigError(f"write_timeout must be above 0, got {self.write_timeout}")
        if self.api_key is not None and not self.api_key:
            # An empty key comes from an unset variable; serving openly instead would be a surprise.
            raise ConfigError("api_key must not be empty")
