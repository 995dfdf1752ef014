"""Half an hour of mixed load on the reference server: what leaks, what stays held, what is lost.

Chats and completions of all lengths, streamed and whole, from as many users as keep it busy; one in
five hangs up at a random point, one in a hundred stops reading for a while. Every request that got
an answer's headers must have ended in exactly one way in the server's own log, and in the way that
its client saw; in the end nothing runs, waits or holds a KV block, and memory is what it was after
the first five minutes.

    python benchmarks/soak_server.py [--minutes N] [--users N] [--quick]
"""

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from prony_server.in_turn import InTurn

MINUTES, QUICK = 30.0, 40 / 60
WARM = 5.0  # minutes; of a shorter run the first third
USERS = 24
CANCELLED, STALLED, REFUSED = 0.20, 0.01, 0.02  # shares of all requests; the last are bad ones
STALL = (1.0, 15.0)  # seconds without reading
WRITE_TIMEOUT = 3.0  # the server's: some of those who stall are cut, some are not
LITTLE = 4096  # bytes that a reader who stalls takes ahead
LAST_ANSWERS = 5.0  # seconds for what runs when the time is up
LONG_ANSWER = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "go on"}],
    "stream": True,
    "n": 8,
    "max_tokens": 1000,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 20,
}
GROWTH = 0.05  # of memory, after the first minutes


@dataclass(slots=True)
class Seen:
    """What the clients saw: of each answer its id and how it ended."""

    ends: Counter[str] = field(default_factory=Counter)
    by_id: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def end(self, how: str, request_id: str | None) -> None:
        self.ends[how] += 1
        if request_id is not None:
            if request_id in self.by_id:
                self.ends["id given twice"] += 1
            self.by_id[request_id] = how


def request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body: short and long, sampled and greedy, streamed and whole."""
    text = "lorem ipsum " * min(150, int(chance.lognormvariate(2, 1)))
    body: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": max(1, min(600, int(chance.lognormvariate(3.5, 1)))),
        "temperature": chance.choice((0, 0.7, 1.3)),
        "stream": chance.random() < 0.8,
        "ignore_eos": chance.random() < 0.7,
    }
    if chance.random() < 0.5:
        body["seed"] = chance.getrandbits(31)
    if chance.random() < 0.3:
        body["repetition_penalty"] = 1.2
    if chance.random() < REFUSED:
        body["temperature"] = -1
    if chance.random() < 0.5:
        return "/v1/completions", {**body, "prompt": text}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}


async def one(
    client: aiohttp.ClientSession,
    slow_reader: aiohttp.ClientSession,
    url: str,
    chance: random.Random,
    seen: Seen,
) -> None:
    """One request, and how it ended: what it got, or that it left."""
    path, body = request(chance)
    fate = chance.random()
    seen.asked += 1
    request_id = None
    try:
        if fate < CANCELLED / 4:  # these leave before there is an answer
            async with asyncio.timeout(chance.random() * 0.02):
                async with client.post(url + path, json=body) as response:
                    request_id = response.headers.get("X-Request-Id")
                    await response.read()
            seen.end("ok" if response.status == 200 else "refused", request_id)
            return
        if CANCELLED <= fate < CANCELLED + STALLED:
            # More bytes than the buffers on their way hold, so that not reading is felt.
            path, body = "/v1/chat/completions", LONG_ANSWER
            client = slow_reader
        async with client.post(url + path, json=body) as response:
            request_id = response.headers.get("X-Request-Id")
            if response.status != 200:
                await response.read()
                seen.end("refused" if response.status == 400 else f"status {response.status}", None)
            elif fate < CANCELLED:
                await _read_some(response, chance.randint(1, 20_000))
                response.close()
                seen.end("left", request_id)
            elif fate < CANCELLED + STALLED:
                await _read_some(response, 1)
                await asyncio.sleep(chance.uniform(*STALL))
                seen.end(_ended(await response.read(), stream=True), request_id)
            else:
                seen.end(_ended(await response.read(), stream=body["stream"]), request_id)
    except TimeoutError:
        seen.end("left", request_id)
    except asyncio.CancelledError:  # the soak is over
        seen.end("left", request_id)
        raise
    except (aiohttp.ClientError, ConnectionError) as error:
        stalled = CANCELLED <= fate < CANCELLED + STALLED
        seen.end("cut" if stalled else f"connection: {type(error).__name__}", request_id)


async def _read_some(response: aiohttp.ClientResponse, size: int) -> None:
    async for chunk in response.content.iter_any():
        size -= len(chunk)
        if size <= 0:
            return


def _ended(body: bytes, *, stream: bool) -> str:
    if not stream:
        return "ok" if json.loads(body)["choices"][0]["finish_reason"] else "no finish"
    data = [line.removeprefix("data: ") for line in body.decode().strip("\n").split("\n\n")]
    if data[-1] == "[DONE]":
        return "ok"
    return "error event" if '"error"' in data[-1] else "silent cut"


async def load(
    url: str, seconds: float, users: int, pid: int, seen: Seen
) -> list[tuple[float, int]]:
    """The load, and the server's memory every second while it goes on."""
    until = time.monotonic() + seconds
    sizes: list[tuple[float, int]] = []
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client,
        aiohttp.ClientSession(
            timeout=timeout,
            read_bufsize=LITTLE,
            connector=aiohttp.TCPConnector(limit=0, socket_factory=_little_socket),
        ) as slow_reader,
    ):

        async def user(number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < until:
                await one(client, slow_reader, url, chance, seen)
                await asyncio.sleep(chance.expovariate(20))

        async def watch() -> None:
            began = time.monotonic()
            while time.monotonic() < until:
                sizes.append((time.monotonic() - began, _resident(pid)))
                await asyncio.sleep(1)

        tasks = [asyncio.create_task(user(number)) for number in range(users)]
        await watch()
        _, late = await asyncio.wait(tasks, timeout=LAST_ANSWERS)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()
    return sizes


def _little_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
    return made


async def metrics(url: str) -> dict[str, dict[str, float]]:
    """Every sample by its name, and there by one label's value, or "" where it has none."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as response:
        text = await response.text()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("finish_reason") or sample.labels.get("error_type") or ""
            values = found.setdefault(sample.name, {})
            values[key] = values.get(key, 0.0) + sample.value
    return found


async def at_rest(url: str) -> dict[str, dict[str, float]]:
    """The metrics once nothing runs or waits; the last ones seen if that does not come."""
    for _ in range(100):
        found = await metrics(url)
        if not found["prony_requests_running"][""] and not found["prony_requests_waiting"][""]:
            return found
        await asyncio.sleep(0.2)
    return found


def account(seen: Seen, lines: list[dict[str, Any]]) -> dict[str, int]:
    """Where the server's log and the clients disagree; all zeros is right."""
    ids = Counter(line["id"] for line in lines if line["id"] is not None)
    outcomes = {line["id"]: line["outcome"] for line in lines}
    whole = [request_id for request_id, how in seen.by_id.items() if how == "ok"]
    return {
        "logged_twice": sum(count > 1 for count in ids.values()),
        "not_logged": sum(request_id not in ids for request_id in seen.by_id),
        "whole_but_not_ok": sum(outcomes.get(request_id) != "ok" for request_id in whole),
        "silent_cuts": seen.ends["silent cut"] + seen.ends["no finish"],
        "unexpected": sum(
            count
            for how, count in seen.ends.items()
            if how not in ("ok", "left", "refused", "cut", "error event")
        ),
    }


def growth(sizes: list[tuple[float, int]], seconds: float) -> tuple[float, float, float]:
    """Bytes after the first minutes, bytes at the end, and the share between them."""
    warm = min(WARM * 60, seconds / 3)
    span = max(seconds / 20, 5)
    first = median(size for at, size in sizes if warm <= at < warm + span)
    last = median(size for at, size in sizes if at >= sizes[-1][0] - span)
    return first, last, last / first - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK * 60:.0f} seconds")
    options = parser.parse_args()
    seconds = 60 * (options.minutes or (QUICK if options.quick else MINUTES))
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, InTurn() as server:
        log = Path(folder) / "requests.jsonl"
        url = server.start(request_log=str(log), write_timeout=WRITE_TIMEOUT, max_num_seqs=16)
        sizes = asyncio.run(load(url, seconds, options.users, server.pid, seen))
        rest = asyncio.run(at_rest(url))
        files = sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())
        server.stop()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    wrong = account(seen, lines)
    answered = int(sum(rest["gen_ai_server_request_duration_seconds_count"].values()))
    left_engine = int(sum(rest["prony_requests_finished_total"].values()))
    wrong["answered_but_not_logged"] = abs(answered - len(lines))
    first, last, grown = growth(sizes, seconds)
    held = {
        name: int(rest[f"prony_{name}"][""])
        for name in ("requests_running", "requests_waiting", "kv_blocks_used")
    }
    print(f"requests    {seen.asked:,} in {seconds:.0f} s: "
          + ", ".join(f"{count:,} {how}" for how, count in seen.ends.most_common()))  # fmt: skip
    outcomes = Counter(line["outcome"] for line in lines)
    print(f"server      {answered:,} answered, {left_engine:,} left the engine: "
          + ", ".join(f"{count:,} {how}" for how, count in outcomes.most_common()))  # fmt: skip
    print(f"memory      {first / 1e6:,.1f} MB after the first minutes, {last / 1e6:,.1f} MB at the "
          f"end: {grown:+.1%}")  # fmt: skip
    print(
        f"held        {', '.join(f'{value} {name}' for name, value in held.items())}; {files} files"
    )
    print(f"accounting  {', '.join(f'{value} {name}' for name, value in wrong.items())}")
    figures = {
        "minutes": round(seconds / 60, 2),
        "requests": seen.asked,
        "rss_growth": round(grown, 4),
        **held,
        **wrong,
        "finished": {k: int(v) for k, v in rest["prony_requests_finished_total"].items()},
    }
    print(json.dumps(figures))
    sys.exit(0 if grown < GROWTH and not any(held.values()) and not any(wrong.values()) else 1)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
