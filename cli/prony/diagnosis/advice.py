"""What each verdict means and what to do about it, by engine: data only.

`change` is in terms of the engine's own options; "any" holds for every engine. `measure` says what
would make the diagnosis surer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Text:
    """What people are told of one verdict."""

    title: str
    change: Mapping[str, str]
    measure: str

    def advice(self, engine: str | None) -> tuple[str, ...]:
        """The lines for this engine, the most direct first."""
        chosen = [self.change.get(engine or ""), self.change.get("any")]
        return tuple(line for line in chosen if line)


TEXTS: Final[Mapping[str, Text]] = {
    "load_generator": Text(
        "the load generator itself",
        {"any": "measure again: `prony run --processes N`, a core of its own for the client, "
                "or a lower --rate. No other verdict of this run counts before that."},
        "prony calibrate: what this machine's client can do",
    ),
    "upstream_limit": Text(
        "a connection limit before the server",
        {"any": "raise the limit of what stands between: proxy, load balancer, gateway or client "
                "pool (nginx: keepalive and max_conns of the upstream; envoy: max_connections and "
                "max_requests of its circuit breaker)"},
        "the same load straight at the server, past whatever stands before it",
    ),
    "kv_capacity": Text(
        "KV cache capacity",
        {"prony": "more blocks (--num-gpu-blocks-override), a shorter --max-model-len, or fewer "
                  "requests at a time (--max-num-seqs)",
         "vllm": "--gpu-memory-utilization up, --kv-cache-dtype fp8, --max-model-len or "
                 "--max-num-seqs down, or --tensor-parallel-size up",
         "sglang": "--mem-fraction-static up, --kv-cache-dtype fp8_e5m2, --max-running-requests "
                   "down, or --tp up",
         "tgi": "--max-batch-total-tokens up (as memory allows), --max-total-tokens down, or more "
                "shards (--num-shard)",
         "any": "shorter prompts and answers, or one more replica"},
        "KV use and preemptions over a longer run",
    ),
    "batch_slots": Text(
        "places in the batch",
        {"prony": "raise --max-num-seqs (with --batching none or generate: --batching continuous)",
         "vllm": "raise --max-num-seqs",
         "sglang": "raise --max-running-requests (and --cuda-graph-max-bs with it)",
         "tgi": "raise --max-batch-size or --max-concurrent-requests",
         "any": "one more replica, where a larger batch makes tokens too slow"},
        "the same load at twice the limit: the queue must shrink",
    ),
    "prefill_budget": Text(
        "the token budget of an iteration",
        {"prony": "raise --max-num-batched-tokens",
         "vllm": "raise --max-num-batched-tokens (2048 favours ITL, over 8192 throughput)",
         "sglang": "raise --chunked-prefill-size",
         "tgi": "raise --max-batch-prefill-tokens",
         "any": "it costs smoothness: a larger iteration holds up running streams longer"},
        "iteration times by kind at two budgets",
    ),
    "prefill_compute": Text(
        "prompt computation",
        {"prony": "--enable-prefix-caching, where prompts begin alike",
         "vllm": "--enable-prefix-caching where prompts begin alike, a P/D split, or "
                 "--tensor-parallel-size up",
         "sglang": "the radix cache (do not --disable-radix-cache), --tp up, or a P/D split",
         "tgi": "--num-shard up; prefix caching is on by default",
         "any": "shorter prompts; more compute"},
        "prefix-cache hits; the same load with prompts half as long",
    ),
    "prefill_interference": Text(
        "prompts that hold up streams",
        {"prony": "lower --max-num-batched-tokens, so that a prompt goes in smaller pieces",
         "vllm": "lower --max-num-batched-tokens (chunked prefill is on by default)",
         "sglang": "lower --chunked-prefill-size, or --enable-mixed-chunk",
         "tgi": "lower --max-batch-prefill-tokens, raise --waiting-served-ratio",
         "any": "servers of their own for long prompts (P/D split)"},
        "iteration times by kind; the same load without the long prompts",
    ),
    "decode_bandwidth": Text(
        "decode speed (memory bandwidth)",
        {"prony": "--quantize, CUDA graphs, a GPU with more bandwidth",
         "vllm": "--quantization, --speculative-config, --tensor-parallel-size over NVLink",
         "sglang": "--quantization, --speculative-algorithm, --tp over NVLink",
         "tgi": "--quantize, --speculate, --num-shard",
         "any": "a smaller model"},
        "DRAM activity (DCGM, NVML GPM) and a profile of some decode iterations",
    ),
    "batch_growth": Text(
        "batch size (as designed)",
        {"prony": "cap the batch with --max-num-seqs, where the SLO on ITL asks for it",
         "vllm": "cap the batch with --max-num-seqs, where the SLO on ITL asks for it",
         "sglang": "cap it with --max-running-requests, where the SLO on ITL asks for it",
         "tgi": "cap it with --max-batch-size, where the SLO on ITL asks for it",
         "any": "one more replica: each with half the batch"},
        "a run with steps of the rate: ITL over batch size",
    ),
    "host_bound": Text(
        "the host between iterations",
        {"prony": "CUDA graphs, fewer and larger iterations (--max-num-seqs up)",
         "vllm": "--async-scheduling, CUDA graphs (no --enforce-eager), -O3",
         "sglang": "the overlap schedule (no --disable-overlap-schedule), CUDA graphs",
         "tgi": "CUDA graphs (--cuda-graphs)",
         "any": "a faster core; less Python a step"},
        "prony profile: the functions that the host spends its time in",
    ),
    "step_output": Text(
        "what is done with each iteration's tokens",
        {"vllm": "--disable-log-requests, --disable-log-stats; more --api-server-count",
         "sglang": "--log-level warning, --stream-interval up",
         "any": "take logging, metrics and callbacks out of the engine's loop: hand over to a "
                "thread, or do it once a request"},
        "prony profile: the function is named there",
    ),
    "host_device_copies": Text(
        "copies between host and device",
        {"any": "keep tensors on the device; pin host memory and copy without blocking; look for "
                ".cpu(), .item() and .to() in the loop"},
        "a profile with memory copies over a longer time; PCIe counters",
    ),
    "memory_exhausted": Text(
        "memory that ran out",
        {"prony": "fewer --num-gpu-blocks-override, a lower --max-num-batched-tokens",
         "vllm": "--gpu-memory-utilization down, --max-num-batched-tokens down",
         "sglang": "--mem-fraction-static down, --chunked-prefill-size down",
         "tgi": "--cuda-memory-fraction down, --max-batch-prefill-tokens down",
         "any": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments"},
        "torch.cuda.memory snapshots around a failed iteration",
    ),
    "memory_growth": Text(
        "memory that grows",
        {"any": "find what is kept: tracemalloc or memray on the server, caches without a bound, "
                "per-request objects that outlive their request"},
        "a soak of an hour: whether the line goes on",
    ),
    "tokenizing": Text(
        "the front end: tokenizing",
        {"prony": "tokenize in the thread pool, or shorter prompts",
         "vllm": "--api-server-count up; a fast tokenizer (--tokenizer-mode auto)",
         "sglang": "--tokenizer-worker-num up",
         "tgi": "--validation-workers up",
         "any": "a fast (Rust) tokenizer; keep it off the event loop"},
        "tokenize time over prompt length; a profile of the event loop's thread",
    ),
    "blocked_loop": Text(
        "the front end: a blocked event loop",
        {"vllm": "--api-server-count up; look at middlewares and logging",
         "any": "find the call that blocks (asyncio's debug mode and PYTHONASYNCIODEBUG name calls "
                "over 100 ms; py-spy dump shows it), and give it a thread"},
        "prony profile --profiler py-spy: the frame under which the loop's thread waits",
    ),
    "front_end": Text(
        "the front end",
        {"vllm": "--api-server-count up; fewer middlewares; --disable-log-requests",
         "sglang": "--tokenizer-worker-num up; --log-level warning",
         "any": "profile the process that takes requests"},
        "tokenize times and the event loop's lag, which this engine does not export",
    ),
    "network": Text(
        "the network, or a reader that is too slow",
        {"any": "look at the way between: bandwidth, TCP_NODELAY, keep-alive, buffering or "
                "compression in a proxy; larger chunks (fewer events) for slow readers"},
        "the same load from the server's own machine",
    ),
    "throttling": Text(
        "clocks that are held back",
        {"any": "cooling, the power limit (nvidia-smi -q -d PERFORMANCE), fewer GPUs a case"},
        "clock, power and temperature over a longer run",
    ),
    "admission": Text(
        "refused requests",
        {"prony": "raise --max-queue, or add capacity",
         "vllm": "raise --max-num-seqs or add replicas",
         "sglang": "raise --max-queued-requests or add replicas",
         "tgi": "raise --max-concurrent-requests or add replicas",
         "any": "refusing is right where the queue would break the promise: capacity is short"},
        "a run with steps of the rate: where refusals begin",
    ),
    "failures": Text(
        "failing requests",
        {"any": "the errors are listed in the run's report with an example each"},
        "the server's log at the times of the failures",
    ),
    "saturation": Text(
        "more load than the server can do",
        {"any": "scale out, or promise no more than the last step before the knee"},
        "a run with finer steps of the rate about the knee (scenario: steps)",
    ),
    "periodic_stalls": Text(
        "stalls at equal distances",
        {"any": "look for what has that period: garbage collection, a metrics push, a cron job, "
                "autoscaling, a log rotation, a health check that blocks"},
        "py-spy dump during a stall; the same run with longer duration",
    ),
    "none": Text(
        "no bottleneck at this load",
        {"any": "raise the load until something gives: prony run steps"},
        "a run at a higher rate",
    ),
    "cannot_tell": Text(
        "cannot tell",
        {"any": "give it more to see (a server whose /metrics can be read, more requests), or look "
                "into the largest part of the split by hand"},
        "the server's own metrics beside the client's times",
    ),
}  # fmt: skip
