"""Keeps our programs imported and forks itself for each start of one: requests in, processes out.

`python -m tests.forker KIND FD` reads requests from the socket FD: JSON with `module`, `arguments`,
`cwd`, `environ`, `session` and `file_size` (the most bytes of a file, or null), and four files:
standard input, output and error of the new process, and a pipe for its id and, once it has ended,
its exit code. What the fork then does is what `python -m MODULE ARGUMENTS` does; only the imports
are done already: those of `prony gate` and its like, of `locust` and `prony run`, or of `serve`.
"""

# Taken before Locust patches them: this process itself runs without gevent.
import gc
import json
import os
import resource
import runpy
import signal
import socket
import struct
import sys
from importlib import import_module
from io import TextIOWrapper
from os import _exit, close, dup2, fork, waitpid

LENGTH, TOLD = struct.Struct("!I"), struct.Struct("!q")
MOST = 1 << 20  # bytes of a request


def prepare(kind: str) -> None:
    """Imports what programs of this kind import as they start, in their order."""
    commands = import_module("prony.__main__").COMMANDS
    for name in commands:
        import_module(f"prony.{name}")
    later: tuple[str, ...]
    if kind == "locust":  # what `prony run` imports
        later = ("prony.annotations", "prony.grafana", "prony.judging", "prony.server_metrics",
                 "prony_loadgen.endpoint", "prony_loadgen.locust_user")  # fmt: skip
    elif kind == "serve":
        later = ("prony.observability", "prony_server.app", "prony_server.engine",
                 "prony_server.generate_engine", "prony_server.loading", "prony_server.products",
                 "prony_server.runner", "prony_server.tiny", "tokenizers",
                 "transformers.models.llama.modeling_llama")  # fmt: skip
    else:
        later = ("prony.judging", "prony.comparing", "prony.linting", "prony_loadgen.report",
                 "prony_loadgen.compare_view", "prony_slo.rules", "prony_slo.openslo",
                 "prony_slo.baseline_store")  # fmt: skip
    for name in later:
        import_module(name)
    if kind == "locust":
        import_module("locust.main")
    del sys.modules["prony.__main__"]  # it runs anew each time
    # What is collected in a fork would be copied there.
    gc.collect()
    gc.freeze()


def serve(asking: socket.socket) -> dict[str, object] | None:
    """Returns a request in each new process, and None in this one when nobody asks any more."""
    # Nobody waits for the processes between: they tell how theirs ended, and go.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, files, _, _ = asking.recvmsg(LENGTH.size, socket.CMSG_SPACE(4 * 4))
        if not data:
            return None
        (length,) = LENGTH.unpack(data)
        request: dict[str, object] = json.loads(asking.recv(length, socket.MSG_WAITALL))
        handed = list(struct.unpack("4i", files[0][2][:16]))
        if fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asking.close()
            if (pid := fork()) == 0:
                close(handed.pop())
                for number, file in enumerate(handed):
                    dup2(file, number)
                    close(file)
                return request
            status = handed.pop()
            for file in handed:
                close(file)
            os.write(status, TOLD.pack(pid))
            os.write(status, TOLD.pack(os.waitstatus_to_exitcode(waitpid(pid, 0)[1])))
            _exit(0)
        for file in handed:
            close(file)


def become(request: dict[str, object]) -> None:
    """Turns this process into the program that was asked for."""
    if "gevent" in sys.modules:
        import_module("gevent").reinit()  # as after any fork of its own
    if request["session"]:
        os.setsid()
    if request["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)  # type: ignore[arg-type]
    cwd, environ = request["cwd"], request["environ"]
    assert isinstance(cwd, str) and isinstance(environ, dict)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    _open_standard_files(unbuffered=bool(environ.get("PYTHONUNBUFFERED")))
    sys.path[0] = cwd
    sys.argv[:] = ["", *request["arguments"]]  # type: ignore[misc]
    runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)


def _open_standard_files(unbuffered: bool) -> None:
    """As the interpreter does when it starts; those that are there belong to other files."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = os.fdopen(number, "wb" if number else "rb", 0 if unbuffered and number else -1)
        text = TextIOWrapper(
            file,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr",
            write_through=unbuffered and number > 0,
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as asking:
        prepare(sys.argv[1])
        asked = serve(asking)
    if asked is not None:
        become(asked)
