"""Under which names engines tell their latencies: an engine's name in, its Prometheus series out.

Read in the engines' sources: vLLM 0.33, SGLang 0.5.23 and this Prony's own server. A histogram
knows only its bucket bounds, so a limit between two of them cannot be asked for.
"""

from dataclasses import dataclass
from typing import Final

from prony_slo.promise import Latency


@dataclass(frozen=True, slots=True)
class Series:
    """One histogram of requests."""

    name: str  # without _bucket and _count
    buckets: tuple[float, ...]  # seconds, rising
    selector: str = ""  # what restricts it to answers, such as error_type=""
    note: str = ""  # what to know before trusting it


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine exports of what an SLO speaks of."""

    job: str  # what its scrape job is usually called
    latencies: dict[Latency, Series]
    bad: str  # a counter of failed requests, with its selector
    all: str  # a counter of all requests that `bad` is a part of
    bad_note: str


_VLLM_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_VLLM_TPOT: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_VLLM_E2E: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_SGLANG_TTFT: Final = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
)  # fmt: skip
_SGLANG_ITL: Final = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2,
    0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_SGLANG_E2E: Final = (*_SGLANG_TTFT, 600.0, 1200.0, 1800.0, 2400.0)
# A test holds these and the server's own lists equal; this package may not import the server.
_PRONY_FINE: Final = (0.0005, 0.001, 0.0025, 0.005)
_PRONY_TTFT: Final = (
    *_PRONY_FINE, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_PRONY_TPOT: Final = (
    *_PRONY_FINE, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
_PRONY_E2E: Final = (
    *_PRONY_FINE, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96,
    81.92,
)  # fmt: skip

ENGINES: Final[dict[str, Engine]] = {
    "prony": Engine(
        job="prony",
        latencies={
            "ttft": Series("gen_ai_server_time_to_first_token_seconds", _PRONY_TTFT),
            "tpot": Series("gen_ai_server_time_per_output_token_seconds", _PRONY_TPOT),
            "e2e": Series(
                "gen_ai_server_request_duration_seconds", _PRONY_E2E, selector='error_type=""'
            ),
        },
        bad='gen_ai_server_request_duration_seconds_count{error_type!~"|client_disconnected"}',
        all="gen_ai_server_request_duration_seconds_count{}",
        bad_note="a client that went away is not counted as a failure",
    ),
    "vllm": Engine(
        job="vllm",
        latencies={
            "ttft": Series("vllm:time_to_first_token_seconds", _VLLM_TTFT),
            "tpot": Series("vllm:request_time_per_output_token_seconds", _VLLM_TPOT),
            "e2e": Series("vllm:e2e_request_latency_seconds", _VLLM_E2E),
        },
        bad='vllm:request_success_total{finished_reason="error"}',
        all="vllm:request_success_total{}",
        bad_note="vLLM counts only what reached its engine: refusals and crashes are seen by the "
        "gateway in front of it, so alert on its errors too",
    ),
    "sglang": Engine(
        job="sglang",
        latencies={
            "ttft": Series("sglang:time_to_first_token_seconds", _SGLANG_TTFT),
            "tpot": Series(
                "sglang:request_time_per_output_token_seconds",
                _SGLANG_ITL,
                note="its bucket bounds are taken to be those of SGLang's inter-token latency; "
                "compare them with your server's /metrics",
            ),
            "e2e": Series("sglang:e2e_request_latency_seconds", _SGLANG_E2E),
        },
        bad="sglang:num_aborted_requests_total{}",
        all="sglang:num_requests_total{}",
        bad_note="SGLang counts aborted requests, those whose client went away among them",
    ),
}
