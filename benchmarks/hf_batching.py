"""The peers in transformers itself: prompts and output lengths come in, times of tokens come out.

Its continuous batching, with pages of 32 tokens, as many as all requests need at once (its default
sizes the pool from free memory), and one `generate` after another. Both greedy, ends ignored.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from benchmarks.at_once import Work

PAGE = 32  # tokens
SLACK = 8  # pages a request: it rounds lengths up, and keeps some for itself


@dataclass(frozen=True, slots=True)
class Times:
    seconds: float  # from the first submission to the last token
    ttft_mean: float  # from the first submission too: all are there at once
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def continuous_batching(
    model: Any, works: Sequence[Work], slots: int, max_batch_tokens: int
) -> Times:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    names = {field.name for field in fields(ContinuousBatchingConfig)}
    pages = sum(math.ceil((len(work.prompt) + work.output_tokens) / PAGE) + SLACK for work in works)
    options: dict[str, Any] = {
        "page_size" if "page_size" in names else "block_size": PAGE,  # renamed after 5.17
        "num_blocks": pages,
        "max_batch_tokens": max(max_batch_tokens, *(len(work.prompt) for work in works)),
        "max_requests_per_batch": slots,
    }
    config: Any = GenerationConfig
    greedy = config(do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.set_attn_implementation("sdpa")
    times: dict[str, list[float]] = {}
    # Not in inference mode, which 5.17's thread does not share; it takes no gradients by itself.
    with model.continuous_batching_context_manager(
        generation_config=greedy,
        continuous_batching_config=ContinuousBatchingConfig(**options),
        block=True,
        timeout=10,
    ) as manager:
        # Without CUDA there is nothing to warm up, and its loop sets itself up with the first.
        manager.add_request(works[0].prompt[:4], max_new_tokens=2, eos_token_id=-1)
        _result(manager)
        started = time.perf_counter()
        for at, work in enumerate(works):
            manager.add_request(
                work.prompt,
                request_id=str(at),
                max_new_tokens=work.output_tokens,
                record_timestamps=True,
                eos_token_id=-1,
            )
        while len(times) < len(works):
            result = _result(manager)
            at = int(result.request_id)
            if len(result.generated_tokens) != works[at].output_tokens:
                raise RuntimeError(f"transformers gave request {at} another length: {result.error}")
            times[result.request_id] = result.timestamps
    first = [mine[0] - started for mine in times.values()]
    last = max(mine[-1] for mine in times.values())
    return Times(last - started, sum(first) / len(first), sum(work.output_tokens for work in works))


def one_by_one(model: Any, works: Sequence[Work]) -> Times:
    """`model.generate` of each: its rate is the rate of all, its TTFT that of these alone."""
    from transformers.generation.streamers import BaseStreamer

    class FirstToken(BaseStreamer):
        def __init__(self) -> None:
            self.puts: list[float] = []

        def put(self, value: Any) -> None:
            self.puts.append(time.perf_counter())  # the prompt, then each token

        def end(self) -> None:
            pass

    model.set_attn_implementation("sdpa")
    started = time.perf_counter()
    firsts = []
    for work in works:
        streamer = FirstToken()
        ids = torch.tensor([work.prompt], device=model.device)
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=work.output_tokens,
                min_new_tokens=work.output_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                streamer=streamer,
            )
        firsts.append(streamer.puts[1] - started)
    return Times(
        time.perf_counter() - started,
        sum(firsts) / len(firsts),
        sum(work.output_tokens for work in works),
    )


def _result(manager: Any) -> Any:
    while True:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            return result
        if not manager.is_running():
            raise RuntimeError("transformers' generation thread has died")
