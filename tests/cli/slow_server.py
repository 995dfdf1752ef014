"""A fake server whose tokens take a set time: `python -m tests.cli.slow_server PORT FIRST GAP`.

It answers until it is stopped by a signal, so that it can be one side of an A/B test.
"""

import signal
import sys
import threading

from tests.loadgen.fake_server import FakeServer

if __name__ == "__main__":
    port, first, gap = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with FakeServer(first_token=first, gap=gap, port=port):
        stopped.wait()
