"""When bytes arrived: the kernel's times, and what is done where they cannot be had or trusted."""

import socket
import sys
import threading
import time

import pytest
from tests.loadgen.asking import ask, on_a_quiet_moment, request
from tests.loadgen.replay_server import DONE, FINISH, Peer, chunk, event, serving

from prony_loadgen.record import RequestRecord
from prony_loadgen.timestamps import Receiver, WallClock, ask_for_stamps

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HAS_STAMPS = sys.platform == "linux"


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection; packets to the second are stamped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask_for_stamps(theirs)
    return ours, theirs


def test_a_read_that_comes_late_has_the_time_at_which_its_bytes_came() -> None:
    ours, theirs = pair()
    receiver, wall = Receiver(), WallClock()

    def check() -> None:
        before = time.monotonic()
        ours.sendall(b"token")
        after = time.monotonic()
        while time.monotonic() < after + 0.05:  # a client that has other things to do
            pass
        data, stamp = receiver.receive(theirs)
        read = time.monotonic()
        wall.check()
        at = wall.arrival(stamp, before, read)
        assert data == b"token"
        if HAS_STAMPS:
            assert at is not None
            assert before <= at <= after + 0.001
        else:
            assert at is None

    with ours, theirs:
        on_a_quiet_moment(check)


def test_a_socket_without_stamps_is_read_all_the_same() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"token")
        assert Receiver().receive(theirs) == (b"token", None)
        ours.close()
        assert Receiver().receive(theirs) == (b"", None)


SECOND = 1_000_000_000


def clock(offset: int = 0) -> WallClock:
    """A clock whose wall time is monotonic time plus `offset` ns, at monotonic time 0."""
    wall = WallClock()
    wall._offset, wall._checked = offset, 0
    return wall


def test_a_stamp_counts_only_between_what_came_before_it_and_its_reading() -> None:
    wall = clock()
    assert wall.arrival(5 * SECOND, 4.0, 6.0) == 5.0
    assert wall.arrival(None, 4.0, 6.0) is None
    assert wall.arrival(3 * SECOND, 4.0, 6.0) is None
    assert wall.arrival(7 * SECOND, 4.0, 6.0) is None
    # Clocks that are compared a few microseconds apart do not lose a time.
    assert wall.arrival(4 * SECOND - 5_000, 4.0, 6.0) == 4.0
    assert wall.arrival(6 * SECOND + 5_000, 4.0, 6.0) == 6.0


@pytest.mark.parametrize("hours", [-1, 1])
def test_after_a_step_of_the_wall_clock_stamps_are_not_trusted_for_a_second(hours: int) -> None:
    wall = clock()
    wall.observe(hours * 3600 * SECOND, SECOND)
    after_step = hours * 3600 * SECOND
    assert wall.arrival(after_step + SECOND, 0.5, 1.5) is None
    wall.observe(after_step, SECOND + SECOND // 2)
    assert wall.arrival(after_step + SECOND, 0.5, 1.5) is None
    wall.observe(after_step, 3 * SECOND)
    assert wall.arrival(after_step + 2 * SECOND, 1.5, 3.0) == 2.0


def test_a_wall_clock_that_is_turned_slowly_stays_trusted() -> None:
    wall = clock()
    for second in range(1, 100):
        wall.observe(second * 500_000, second * SECOND)  # 500 ppm: as fast as ntpd turns it
        at = wall.arrival(second * SECOND + second * 500_000, 0.0, 1000.0)
        assert at == pytest.approx(second, abs=1e-9)


def three_tokens(peer: Peer, _: bytes) -> None:
    peer.send(HEAD)
    for word in ("a", "b", "c"):
        time.sleep(0.03)
        peer.send(chunk(event(word)))
    peer.send(chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n")


def test_a_client_that_is_held_up_adds_nothing_to_a_latency_but_says_so() -> None:
    def held_up(record: RequestRecord) -> None:
        if record.id == "0":  # in the client's thread, while the other's tokens come in
            time.sleep(0.08)
            went_on.set()
        records[record.id] = record

    def quick_then_slow(peer: Peer, asked: bytes) -> None:
        if f"{1:032x}-".encode() in asked:
            peer.send(HEAD + chunk(event("a")) + chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n")
        else:
            peer.send(HEAD)
            time.sleep(0.03)
            peer.send(chunk(event("a")))
            went_on.wait(5)
            peer.send(chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n")

    records: dict[str, RequestRecord] = {}
    went_on = threading.Event()

    def check() -> None:
        went_on.clear()
        with serving(quick_then_slow) as server:
            ask(server.url, request(1), request(0, after=0.01), on_record=held_up)
        slow = records["1"]
        assert slow.ttft_from_send is not None
        assert slow.client_lag is not None
        assert slow.client_lag > 0.02
        assert slow.ttft_from_send < 0.05

    if HAS_STAMPS:
        on_a_quiet_moment(check)


def test_every_record_says_whether_its_times_are_the_kernels(tmp_path: object) -> None:
    records: list[RequestRecord] = []

    def check() -> None:
        with serving(three_tokens) as server:
            records[:] = ask(server.url)
        assert (records[0].client_lag is not None) is HAS_STAMPS

    on_a_quiet_moment(check)  # the kernel begins to note times a moment after it is asked to
    [record] = records
    assert RequestRecord.from_json(record.to_json()).client_lag == pytest.approx(
        record.client_lag, abs=1e-6
    )


def test_no_time_lies_before_the_request_or_goes_backwards() -> None:
    over = threading.Event()
    with serving(three_tokens) as server:
        records = ask(server.url, *(request(number) for number in range(20)))
        over.set()
    for record in records:
        assert record.sent is not None and record.headers is not None
        times = [record.sent, record.headers, *(a.at for a in record.arrivals), record.ended]
        assert times == sorted(times)
