"""What a diagnosis rests on: the client's view, the server's, a profile's, each where it exists.

All times are seconds, means over one request unless said otherwise. What is not known is None and
never 0; every verdict says what it would still need.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prony.profiling.facts import ProfileFacts


@dataclass(frozen=True, slots=True)
class Spikes:
    """Gaps between a request's tokens that are far longer than usual."""

    cost: float  # what they took over the usual gap, a request
    with_others: float  # share of that time which ended just as another's first token came


@dataclass(frozen=True, slots=True)
class Silences:
    """Moments in which requests were in flight, but nothing came of any of them."""

    count: int
    length: float | None  # the median
    total: float  # seconds of all of them
    period: float | None  # where they come again and again, at equal distances
    cost: float  # seconds of them, a request
    mean_wait: float = 0.0  # what any moment of the time had to wait for their end


@dataclass(frozen=True, slots=True)
class Cap:
    """Requests that got no header yet while the same number of others was always being answered."""

    answered: int  # how many were, at a time
    share: float  # of the time that requests waited so, it was just as many
    waited: float  # share of the requests that waited


@dataclass(frozen=True, slots=True)
class StageSeen:
    """One stage of a load whose rate changes."""

    name: str
    offered: float  # requests a second
    done: float
    e2e: float | None  # the median


@dataclass(frozen=True, slots=True)
class Client:
    """What the load generator saw, of the requests that ended while the server was watched."""

    requests: int
    answered: int  # ok, with output: what the means are over
    seconds: float
    e2e: float | None
    ttft: float | None
    send_lag: float
    send_lag_p99: float
    read_lag: float  # the longest that bytes of an answer waited for us
    connect: float  # 0 for a request that took a kept connection
    until_headers: float | None  # from the request's sending to its answer's headers
    in_flight: float  # how many at a time
    prompt_tokens: float | None
    output_tokens: float | None
    tpot: float | None
    tpot_alone: float | None  # of those that had the server mostly to themselves
    gap_p50: float | None
    gap_p99: float | None
    spikes: Spikes
    silences: Silences
    cap: Cap | None = None
    failed: int = 0
    refused: int = 0  # of these: told to come back later (429, 503)
    retry_after: float | None = None
    retried: int = 0  # of these: refused at first, and tried again until they were not
    retry_wait: float = 0.0  # of a mean request: until its last try
    cpu_share: float | None = None  # of one core
    cpu_wait_share: float | None = None
    doubts: tuple[str, ...] = ()  # why our own instrument cannot be trusted
    breached: frozenset[str] = frozenset()  # metrics whose promise was broken
    stages: tuple[StageSeen, ...] = ()
    piled_up: bool = False  # more came than was done with

    @property
    def stream(self) -> float | None:
        """From the first token to the last."""
        return None if self.e2e is None or self.ttft is None else self.e2e - self.ttft


@dataclass(frozen=True, slots=True)
class Steps:
    """Iterations of the engine of one kind."""

    count: float
    seconds: float  # of one, the mean


@dataclass(frozen=True, slots=True)
class Server:
    """What the server's page said, between two looks at it."""

    engine: str  # a name of the map of engines
    seconds: float
    requests: float | None = None  # that ended
    e2e: float | None = None
    ttft: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    itl: float | None = None
    itl_p50: float | None = None  # between two tokens, in the engine: bounds of buckets
    itl_p99: float | None = None
    tokenize: float | None = None
    detokenize: float | None = None  # busy with it
    write_wait: float | None = None  # for a reader that takes nothing
    running: float | None = None  # how many at a time
    running_most: float | None = None  # of the looks
    running_held: float | None = None  # of the looks at which others waited, the mean
    waiting: float | None = None
    slots: float | None = None  # the most that may run
    budget: float | None = None  # tokens of one iteration, at most
    kv: float | None = None  # share in use while requests wait, else of all looks
    kv_most: float | None = None
    preemptions: float | None = None  # a request
    prefix_hits: float | None = None  # share of prompt tokens
    prompt_tokens: float | None = None  # a request
    generation_tokens: float | None = None
    steps: Mapping[str, Steps] = field(default_factory=dict)  # by kind; "all" is every one
    longer_steps: Mapping[float, float] = field(default_factory=dict)  # than so long: how many
    batch: float | None = None  # requests in an iteration
    step_tokens: float | None = None  # of an iteration
    prefill_step_tokens: float | None = None  # prompt tokens of an iteration that has any
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of the engine's loop
    forward: float | None = None  # seconds of them in the model
    gpu: bool = False
    loop_lag: float | None = None  # of the event loop
    loop_lag_p99: float | None = None
    engine_cpu: float | None = None  # of one core: the engine's thread
    loop_cpu: float | None = None  # the event loop's
    cpu: float | None = None  # cores of the whole process
    memory: float | None = None  # bytes
    memory_growth: float | None = None  # bytes a second
    memory_steady: float | None = None  # how straight that line is: r squared
    out_of_memory: float | None = None  # times
    device_retries: float | None = None  # of the allocator, after a failed try
    rejected: float | None = None  # requests
    gpu_active: float | None = None  # share of time in which the SMs worked
    gpu_dram: float | None = None  # share of the memory's bandwidth
    gpu_throttled: float | None = None  # share of time in which the clocks were held back
    missing: tuple[str, ...] = ()  # what this engine does not tell, in words

    @property
    def busy(self) -> float | None:
        """Seconds in which the engine's loop was not idle."""
        if not self.stages:
            return None
        return sum(taken for name, taken in self.stages.items() if name != "idle")

    @property
    def host(self) -> Mapping[str, float]:
        """Seconds of the loop's stages in which the model did not run.

        Sampling ends in waiting for the device, so on a GPU it is the model's time.
        """
        model = {"idle", "forward", "run_batch"} | ({"sample"} if self.gpu else set())
        return {name: taken for name, taken in self.stages.items() if name not in model}

    def step(self, kind: str) -> float | None:
        """The mean of one iteration of that kind."""
        found = self.steps.get(kind)
        return found.seconds if found is not None and found.count else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a run, or of a server that was only watched."""

    client: Client | None = None
    server: Server | None = None
    profile: ProfileFacts | None = None
    profile_left_out: bool = False  # whether nothing else has the profiled time in it

    @property
    def e2e(self) -> float | None:
        """A request's whole time: as the client saw it, else as the server did."""
        if self.client is not None:
            return self.client.e2e
        return self.server.e2e if self.server is not None else None

    @property
    def outside_before(self) -> float | None:
        """Before the first token, neither in the load generator nor in the server's handler.

        It is the network, what stands between, and the server before it looks at the request.
        Where the server tells no TTFT it is of the whole request.
        """
        client, server = self.client, self.server
        if client is None or server is None or client.e2e is None:
            return None
        ours = client.send_lag + client.connect + client.retry_wait
        if client.ttft is not None and server.ttft is not None:
            return max(0.0, client.ttft - ours - server.ttft)
        return None if server.e2e is None else max(0.0, client.e2e - ours - server.e2e)

    @property
    def outside_stream(self) -> float | None:
        """What a stream took longer at the client than where it was written."""
        client, server = self.client, self.server
        if client is None or server is None or client.stream is None:
            return None
        if server.e2e is None or server.ttft is None:
            return None
        return max(0.0, client.stream - (server.e2e - server.ttft))

    @property
    def front(self) -> float | None:
        """In the server, but neither in its tokenizer nor in its engine."""
        server = self.server
        if server is None or server.e2e is None or server.queue is None:
            return None
        if server.prefill is None or server.decode is None:
            return None
        engine = server.queue + server.prefill + server.decode
        return max(0.0, server.e2e - engine - (server.tokenize or 0.0))

    @property
    def front_stream(self) -> float | None:
        """What the server's stream took longer to write than its engine to make."""
        server = self.server
        if server is None or server.e2e is None or server.ttft is None or server.decode is None:
            return None
        return max(0.0, server.e2e - server.ttft - server.decode)

    @property
    def disturbed(self) -> float | None:
        """The share of its busy time in which the engine's thread wanted a processor in vain.

        Other work on the machine had it. Only where the model runs on the same processors: a
        thread that waits for a GPU uses none either. The event loop's thread shares one
        interpreter with it, so its time is no other work's.
        """
        server = self.server
        if server is None or server.gpu or server.engine_cpu is None or not server.busy:
            return None
        # What stands still, sleeps; it is no processor's fault.
        silences = None if self.client is None else self.client.silences
        still = silences.total if silences is not None and silences.period else 0.0
        wanted = max(server.busy - still, 0.1 * server.busy) / server.seconds
        return min(1.0, max(0.0, 1 - (server.engine_cpu + (server.loop_cpu or 0.0)) / wanted))

    @property
    def own(self) -> float | None:
        """A request's time without what other work on the server's machine added to its engine's.

        What the front end takes is a share of this.
        """
        server, e2e = self.server, self.e2e
        if server is None or e2e is None or server.prefill is None or server.decode is None:
            return e2e
        return e2e - min((self.disturbed or 0.0) * (server.prefill + server.decode), 0.8 * e2e)

    def split(self) -> dict[str, float]:
        """Where a mean request's time went, in the order in which it went there."""
        client, server = self.client, self.server
        parts: dict[str, float | None] = {}
        if client is not None:
            parts |= {"load generator": client.send_lag, "connect": client.connect,
                      "before a retry": client.retry_wait or None,
                      "before the server": self.outside_before}  # fmt: skip
        if server is not None:
            parts |= {
                "tokenise": server.tokenize,
                "queue": server.queue,
                "prefill": server.prefill,
                "decode": server.decode,
                "front end": self.front,
            }
        if client is not None:
            parts["on the way back"] = self.outside_stream
        return {name: taken for name, taken in parts.items() if taken is not None}
