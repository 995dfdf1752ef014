"""Hundreds of clients that hang up, and a server told to stop: others and the server are well."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp
from tests.server.live_server import LiveServer, live_server, until

STREAMS, AFTERWARDS = 500, 20
AT_ONCE = 64  # connections


def chat(content: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": tokens, "stream": True}
    return {**asked, "temperature": 0, "ignore_eos": True}


def ended(body: bytes) -> str:
    """How a whole body says that it ended: `finish`, `error`, or `cut` if it does not say."""
    data = [line.removeprefix("data: ") for line in body.decode().strip("\n").split("\n\n")]
    if data[-1] == "[DONE]":
        return "finish" if json.loads(data[-2])["choices"][0]["finish_reason"] else "cut"
    return "error" if "error" in json.loads(data[-1]) else "cut"


async def hang_up_somewhere(
    client: aiohttp.ClientSession, url: str, chance: random.Random, room: asyncio.Semaphore
) -> None:
    """Before the headers, after so many bytes of the answer, or just before its end."""
    async with room:
        body = chat("x" * chance.randint(1, 200), chance.randint(1, 30))
        leave_at = chance.choice((0, 1, chance.randint(1, 5_000)))
        request = asyncio.ensure_future(client.post(f"{url}/v1/chat/completions", json=body))
        if leave_at == 0:
            await asyncio.wait((request,), timeout=chance.random() * 0.02)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            if not request.cancelled() and request.exception() is None:
                request.result().close()
            return
        response = await request
        async for chunk in response.content.iter_any():
            leave_at -= len(chunk)
            if leave_at <= 0:
                break
        response.close()  # the connection with it, whatever is still to come


async def storm(server: LiveServer) -> tuple[list[bytes], list[bytes]]:
    """The same requests before and after the storm, and their answers."""
    chance = random.Random(3)
    normal = [chat(f"question {number}", 10 + number) for number in range(AFTERWARDS)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def whole(body: dict[str, Any]) -> bytes:
            async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
                return await response.read()

        before = await asyncio.gather(*map(whole, normal))
        room = asyncio.Semaphore(AT_ONCE)
        leavers = (hang_up_somewhere(client, server.url, chance, room) for _ in range(STREAMS))
        await asyncio.gather(*leavers)
        after = await asyncio.gather(*map(whole, normal))
    return before, after


def texts(body: bytes) -> str:
    lines = [line.removeprefix("data: ") for line in body.decode().strip("\n").split("\n\n")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_v03_500_hung_up_streams_leave_nothing_behind_and_harm_nobody() -> None:
    with live_server(max_num_seqs=16) as server:
        tasks = server.tasks()
        before, after = asyncio.run(storm(server))
        assert [ended(body) for body in after] == ["finish"] * AFTERWARDS
        assert [texts(body) for body in after] == [texts(body) for body in before]
        for gauge in ("prony_requests_running", "prony_requests_waiting", "prony_kv_blocks_used"):
            server.wait_for(gauge, 0)
        until(lambda: server.tasks() <= tasks, "the handlers of all who left have ended")
        reasons = ("stop", "length", "abort", "error")
        left = {
            reason: server.metric("prony_requests_finished_total", finish_reason=reason)
            for reason in reasons
        }
        assert left["error"] == 0 and (left["abort"] or 0) > 0


def test_v15_told_to_stop_under_load_it_cuts_nobody_silently() -> None:
    """Some answers are short enough to finish in the drain time, some are not, some come late."""

    async def under_load(server: LiveServer) -> Counter[str]:
        lengths = [5, 20, 4000] * 12
        running = asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as client:

            async def one(tokens: int) -> str:
                body = chat("go", tokens)
                async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
                    if response.status == 503:
                        return "refused"
                    assert response.status == 200
                    first = await response.content.readany()
                    running.set()
                    return ended(first + await response.read())

            tasks = [asyncio.ensure_future(one(tokens)) for tokens in lengths]
            await running.wait()
            server.signal()
            return Counter(await asyncio.gather(*tasks))

    with live_server(max_num_seqs=8, drain_seconds=0.3) as server:
        ends = asyncio.run(under_load(server))
        assert server.code.result(timeout=60) == 0
    assert ends["cut"] == 0 and ends["error"] > 0 and ends["finish"] > 0, ends
