"""A program that forks others: each begins with its modules loaded, so a start costs no imports.

`python -m duolog_server.demo.nursery FD ROOT MODULE...` loads the modules, by default those of a
node, reads what to start from a socket, and reports how it ended. What it forks runs `duolog`, or
another module, with words, files and a directory of its own.

Rules: it never uses gRPC, which has threads of its own, and starts no thread (those of numpy's
OpenBLAS end before a fork, and begin again when they are used). It ends when the socket is closed
or its parent has ended, whose own forks may hold the socket open; what it forked ends with it, also
where it is killed. At its end it removes the directory ROOT.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from duolog_server.demo import skippedtime

REQUEST_BYTES_MAX = 1 << 17
PR_SET_PDEATHSIG = 1
PROGRAM = "duolog_server.ops.cli.main"
# What every node loads before it serves.
NODE_MODULES = (
    "duolog_server.ops.cli.node",
    "duolog_server.node.runtime.logs",
    "duolog_server.serve.server",
    # Nodes without the extra `rocketmq` do not serve RocketMQ's API.
    *(["duolog_server.compat.grpc.apis"] if find_spec("rocketmq") else []),
)
FILES = 4  # of a request: its three standard files, and the pipe for its id and its status


class Nursery:
    """Forks what is asked for."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._ready = selectors.DefaultSelector()
        self._ready.register(asked, selectors.EVENT_READ)
        self._pid = os.getpid()
        self._parent = os.pidfd_open(os.getppid())
        self._ready.register(self._parent, selectors.EVENT_READ)
        # By pidfd: the id, and the pipe for the status.
        self._running: dict[int, tuple[int, int]] = {}
        # Ctrl-C in a terminal is for the tests, which end what they started.
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> dict[str, Any] | None:
        """Fork until nobody asks any more (None); in what is forked, what it is asked to run."""
        while True:
            for key, _ in self._ready.select():
                if key.fd == self._parent:
                    self._end_all()
                    return None
                if key.fd != self._asked.fileno():
                    self._ended(key.fd)
                    continue
                request, files, _, _ = socket.recv_fds(self._asked, REQUEST_BYTES_MAX, FILES)
                if not request:
                    self._end_all()
                    return None
                wanted: dict[str, Any] = json.loads(request)
                if self._fork(wanted["directory"], files):
                    return wanted

    def _fork(self, directory: str, files: list[int]) -> bool:
        """Whether this is the child."""
        assert threading.active_count() == 1, "a fork has one thread"
        pid = os.fork()
        if pid == 0:
            self._become(directory, files)
            return True
        *standard, status = files
        for number in standard:
            os.close(number)
        os.write(status, b"%d\n" % pid)
        watched = os.pidfd_open(pid)
        self._running[watched] = pid, status
        self._ready.register(watched, selectors.EVENT_READ)
        return False

    def _become(self, directory: str, files: list[int]) -> None:
        """Have the files, the directory and the signals of a process that was started anew."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)  # it was killed before that
        self._ready.close()
        self._asked.close()
        os.close(self._parent)
        for watched, (_, status) in self._running.items():
            os.close(watched)
            os.close(status)
        for target, number in enumerate(files[:-1]):
            os.dup2(number, target)
        for number in files:
            os.close(number)
        # Those of this module were made for the nursery's own files.
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        faulthandler.enable()  # its files were the nursery's, too
        os.chdir(directory)
        signal.signal(signal.SIGINT, self._interrupt)

    def _ended(self, watched: int) -> None:
        pid, status = self._running.pop(watched)
        self._ready.unregister(watched)
        os.close(watched)
        _, how = os.waitpid(pid, 0)
        try:
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(how))
        except BrokenPipeError:
            pass  # nobody waits for it any more
        os.close(status)

    def _end_all(self) -> None:
        for pid, _ in self._running.values():
            os.kill(pid, signal.SIGKILL)
        for watched in list(self._running):
            self._ended(watched)


if __name__ == "__main__":
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in (PROGRAM, *(sys.argv[3:] or NODE_MODULES)):
        importlib.import_module(name)
    from pydantic import TypeAdapter

    # The first of a process looks for plugins among all packages: a third of a short command.
    TypeAdapter(int)
    gc.freeze()  # or the first collection of each child would copy what they share
    began = Nursery(asked).serve()
    if began is None:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    else:
        sys.argv = ["duolog", *began["words"]]
        os.environ.update(began.get("environment", {}))
        if began["clock"]:
            skippedtime.follow(Path(began["clock"]))
        if began["module"]:
            runpy.run_module(began["module"], run_name="__main__")
        else:
            importlib.import_module(PROGRAM).main()
