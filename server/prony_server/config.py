"""What `prony serve` was asked for: one frozen value, checked once, that the whole server reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prony_server.faults import KINDS, Fault
from prony_server.limits import Batching, Decode, EngineConfig
from prony_server.loading import DTYPES, GROUPS, Quantization

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
    quantize: Literal["int8", "int4"] | None = None
    group_size: int = 32  # of int4: inputs that share a scale
    calibrate: Path | None = None  # prompts, for quantisation to see which inputs matter
    compile: bool = False  # torch.compile for decode steps
    enforce_eager: bool = False  # no CUDA graphs
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one; the address is told to `ready` and in the log
    served_model_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    batching: Batching = "continuous"
    enable_prefix_caching: bool = True
    max_queue: int | None = None  # more than so many waiting requests are refused with 429
    gpu_memory_utilization: float | None = None  # of all GPU memory; on a CPU of what is free
    # A prompt that is too long gets a 400, or is cut to its end, and the answer says so.
    long_prompts: Literal["refuse", "sliding-window"] = "refuse"
    drain_seconds: float = 30.0  # how long running streams may go on after SIGTERM
    write_timeout: float = 60.0  # a client that reads nothing for so many seconds is cut
    read_timeout: float = 30.0  # a request's head, and then its body, must arrive within it
    torch_threads: int | None = None
    metric_names: Literal["prony", "vllm"] = "prony"  # under which /metrics tells its series
    request_log: str | None = None  # a file that gets a line of JSON a request; "-": stdout
    inject: tuple[Fault, ...] = ()  # slownesses to find
    profile_dir: Path | None = None  # where captures go; without it nothing can be captured
    profiler: Literal["torch", "py-spy"] = "torch"

    @property
    def name(self) -> str:
        """What clients must call the model: a folder's own name, or the name as given."""
        if self.served_model_name is not None:
            return self.served_model_name
        folder = Path(self.model).expanduser()
        if self.model != "tiny" and folder.is_dir():
            return folder.resolve().name
        return self.model

    @property
    def quantization(self) -> Quantization | None:
        if self.quantize is None:
            return None
        return Quantization(self.quantize, self.group_size, self.calibrate)

    @property
    def engine(self) -> EngineConfig:
        """The limits among it, for the engine."""
        return EngineConfig(
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks_override,
            batching=self.batching,
            decode=self._decode,
            prefix_caching=self.enable_prefix_caching,
            max_queue=self.max_queue,
            gpu_memory_utilization=self.gpu_memory_utilization,
        )

    @property
    def _decode(self) -> Decode:
        if self.compile:
            return "compiled"
        return "eager" if self.enforce_eager else "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must be 'tiny', a folder or a hub name, got an empty string")
        try:
            Path(self.model).expanduser().is_dir()
        except (OSError, RuntimeError) as error:  # too long a name, a home that nobody has
            raise ConfigError(f"model {self.model:.60}: {error.args[-1]}") from None
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ConfigError("served_model_name must not be empty")
        self._check_precision()
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
        try:
            self.engine  # noqa: B018 - what else is wrong with the limits
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.metric_names not in ("prony", "vllm"):
            raise ConfigError(f"metric_names must be prony or vllm, got {self.metric_names!r}")
        if self.request_log == "":
            raise ConfigError("request_log must be a file or '-', got an empty string")
        names = [fault.name for fault in self.inject]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"inject: {name} is given {names.count(name)} times, once is enough"
                )
        for fault in self.inject:
            if self.batching == "generate" and KINDS[fault.name].each_step:
                raise ConfigError(
                    f"inject: {fault} needs an engine with steps, got batching generate"
                )
        if self.profiler not in ("torch", "py-spy"):
            raise ConfigError(f"profiler must be torch or py-spy, got {self.profiler!r}")
        if not (math.isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise ConfigError(f"drain_seconds must be 0 or more, got {self.drain_seconds}")
        if self.long_prompts not in ("refuse", "sliding-window"):
            raise ConfigError(
                f"long_prompts must be refuse or sliding-window, got {self.long_prompts!r}"
            )
        for name in ("write_timeout", "read_timeout"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be above 0, got {value}")
        if self.api_key is not None and not self.api_key:
            # An empty key comes from an unset variable; serving openly instead would be a surprise.
            raise ConfigError("api_key must not be empty")

    def _check_precision(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.quantize not in (None, "int8", "int4"):
            raise ConfigError(f"quantize must be int8 or int4, got {self.quantize!r}")
        if self.group_size not in GROUPS:
            known = ", ".join(map(str, GROUPS))
            raise ConfigError(f"group_size must be one of {known}, got {self.group_size}")
        if self.calibrate is not None and self.quantize is None:
            raise ConfigError(f"calibrate {self.calibrate} needs quantize int8 or int4")
        if self.compile and self.enforce_eager:
            raise ConfigError("compile and enforce_eager exclude each other")
        if self.compile and self.batching == "generate":
            raise ConfigError("compile needs an engine with steps, got batching generate")
