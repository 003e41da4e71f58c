"""Nodes as forks of one process that has loaded the server.

A start costs about a second of imports; a fork, a tenth of one. Each is a process as any other is,
with files, ports and signals of its own. What was forked, and the temporary directory, end with
this process, however it ends: `duolog_server.demo.nursery` watches it.
"""

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from duolog.testing._process import ChildError, tail_of
from duolog.testing._server import server_python

LOG = "nursery.log"
NURSERY = "duolog_server.demo.nursery"
PLAIN: Mapping[str, str] = {"module": "", "clock": ""}
START_SECONDS = 120.0  # on a slow machine the first fork waits for the imports


def environment() -> dict[str, str]:
    """This process's environment without duolog's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DUOLOG_")}


class Forked:
    """A forked process, as far as its users need a `subprocess.Popen`."""

    def __init__(self, reports: int, log: Path) -> None:
        """reports: the pipe into which the nursery writes the process id, and later the status.
        log: the nursery's own.
        """
        self.returncode: int | None = None
        self._reports = reports
        weakref.finalize(self, os.close, reports)
        self._looking = threading.Lock()
        pid = _line_of(reports) if _readable(reports, START_SECONDS) else None
        if pid is None:
            raise ChildError(f"the process that forks nodes has ended:\n{tail_of(log)}")
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        with self._looking:
            if self.returncode is None and _readable(self._reports, 0):
                status = _line_of(self._reports)
                self.returncode = -signal.SIGKILL if status is None else status
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if not _readable(self._reports, timeout):
            assert timeout is not None, "without one it waits"
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        status = self.poll()
        assert status is not None, "the nursery has reported it"
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended; its status follows
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _readable(number: int, seconds: float | None) -> bool:
    """Whether bytes or the end of a pipe can be read within this time; None waits."""
    waits = select.poll()  # select.select takes no number above 1023
    waits.register(number, select.POLLIN)
    return bool(waits.poll(None if seconds is None else max(seconds, 0) * 1000))


def _line_of(reports: int) -> int | None:
    """The number in the next line; None where the nursery has ended, and its forks with it."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(reports, 1)
        if not more:
            return None
        line += more
    return int(line)


class Nursery(subprocess.Popen[bytes]):
    """The process that forks."""


class Forks:
    """Forks of one process, which is started at the first of them."""

    def __init__(self, *modules: str, **more: str) -> None:
        """modules: what it loads; those of nodes where not given. more: of its environment."""
        self.modules = modules
        self._starting = threading.RLock()
        self._asks: socket.socket | None = None
        self._nursery: Nursery | None = None
        self._owner = 0
        self._root = Path()
        self._more = more
        self.environment: dict[str, str] | None = None  # of the forks; settled at the first

    def settle(self) -> None:
        """Have the environment of now: what a test sets for itself later is not of all."""
        self.environment = {
            **environment(),
            "GRPC_ENABLE_FORK_SUPPORT": "0",  # or its threads would begin again in each fork
            **self._more,
        }

    def directory(self) -> Path:
        """A new directory, which is removed when this process ends, if not before."""
        self._started()
        return Path(tempfile.mkdtemp(dir=self._root, prefix=""))

    def start(
        self, words: Sequence[str], log: Path, module: str = "", clock: Path | None = None
    ) -> Forked:
        """`duolog` with words, or another module of the server; it writes to a log, beside which
        it runs. clock: a file by which its clocks are put forward. Raises ChildError.
        """
        with open(os.devnull, "rb") as nothing, log.open("ab") as written:
            files = nothing.fileno(), written.fileno(), written.fileno()
            runs = {"module": module, "clock": str(clock or "")}
            return self.fork(words, log.parent, files, runs)

    def fork(
        self,
        words: Sequence[str],
        directory: Path,
        files: tuple[int, int, int],
        runs: Mapping[str, str] = PLAIN,
    ) -> Forked:
        """`duolog` with words, in a directory, with standard files. Raises ChildError.

        runs: module and clock, as of `start`.
        """
        asks = self._started()
        request = {"words": list(words), "directory": str(directory.absolute()), **runs}
        reports, writes = os.pipe()
        try:
            socket.send_fds(asks, [json.dumps(request).encode()], [*files, writes])
        except OSError as error:
            os.close(reports)
            log = tail_of(self._root / LOG)
            raise ChildError(f"no node can be forked: {error}\n{log}") from None
        finally:
            os.close(writes)
        return Forked(reports, self._root / LOG)

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that owns what is forked here."""
        return self._owner not in (0, os.getpid())

    def close(self) -> None:
        """End the process, and what it has forked. Another fork starts it again."""
        if self.inherited:
            return
        with self._starting:
            if self._asks is not None and self._nursery is not None:
                self._asks.close()
                self._nursery.wait(START_SECONDS)
                shutil.rmtree(self._root, ignore_errors=True)  # where it was killed
                self._asks = self._nursery = None

    def _started(self) -> socket.socket:
        if self.inherited:
            raise ChildError(
                "no node can be started here: this process was forked from one that has started "
                "nodes; start them there, or start this process with multiprocessing's `spawn`"
            )
        with self._starting:
            if self._nursery is not None and self._nursery.poll() is not None:
                self.close()
            if self._asks is None:
                asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with asked:
                    self._nursery = self._start_nursery(asked.fileno())
                self._asks = asks
                if not self._owner:
                    atexit.register(self.close)
                self._owner = os.getpid()
            return self._asks

    def _start_nursery(self, number: int) -> Nursery:
        if self.environment is None:
            self.settle()
        python = server_python()
        self._root = Path(tempfile.mkdtemp(prefix="duolog-"))
        with (self._root / LOG).open("wb") as log:
            return Nursery(
                [python, "-m", NURSERY, str(number), str(self._root), *self.modules],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[number],
                process_group=0,  # Ctrl-C in a terminal is for the tests, which end what they began
                cwd=self._root,
                env=self.environment,
            )


NODES = Forks()
