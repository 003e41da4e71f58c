"""A child process: started and stopped any number of times, with its output in files.

Rules: every wait has a deadline; a process is ended by its own id, SIGKILL after SIGTERM in vain.
"""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from duolog._errors import DuologError

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
PROBE_SECONDS = 0.2
LOG_TAIL = 3000


class ChildError(DuologError):
    """A child process did not start, has ended, or is not in the state that the call needs."""


def tail_of(log: Path) -> str:
    """The end of a log, empty where there is none."""
    return log.read_text(errors="replace")[-LOG_TAIL:] if log.exists() else ""


class ChildProcess:
    """One program of this machine. `kind` is what its errors call it."""

    kind = "process"
    ready_seconds = READY_SECONDS  # longest start
    stop_seconds = STOP_SECONDS  # longest clean stop, then SIGKILL

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """output: for what it prints, the log where not given. environment: this process's own."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._output = output or log
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self.process is not None, "start comes first"
        return self.process.pid

    def command(self) -> list[str]:
        """The command line."""
        return self._command

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, in its log's directory. Raises OSError."""
        self.process = self.spawn()

    def spawn(self) -> "subprocess.Popen[bytes]":
        """The process, just started."""
        with self._output.open("ab") as output, self.log.open("ab") as errors:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=self.environment,
                cwd=self.log.parent,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ChildError where the process has ended."""
        if self.process is None or self.process.poll() is not None:
            raise ChildError(f"{self.kind} {self.name} is not running")
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no flush, no goodbye. Raises ChildError where the process has ended."""
        self.signal(signal.SIGKILL)
        assert self.process is not None, "it ran"
        self.process.wait(STOP_SECONDS)

    def end(self) -> None:
        """SIGKILL where it runs, for what it would save is not needed any more."""
        with contextlib.suppress(ChildError):
            self.kill()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that takes too long; the exit status (0: never started)."""
        if self.process is None:
            return 0
        if self.running:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(self.stop_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait(STOP_SECONDS)

    # -- readiness -----------------------------------------------------------------------------

    def log_tail(self) -> str:
        """The end of its log."""
        return tail_of(self.log)

    def must_live(self, began: float) -> None:
        """Raises ChildError where it has ended, or is starting for too long (`monotonic`)."""
        if not self.running:
            raise ChildError(f"{self.kind} {self.name} exited during startup:\n{self.log_tail()}")
        if time.monotonic() - began > self.ready_seconds:
            raise ChildError(
                f"{self.kind} {self.name} was not ready within {self.ready_seconds:g} s; "
                f"the end of {self.log}:\n{self.log_tail()}"
            )

    def wait_listening(self, endpoint: str) -> float:
        """Seconds until HOST:PORT accepts connections. Raises ChildError."""
        began = time.monotonic()
        host, _, port = endpoint.rpartition(":")
        while True:
            self.must_live(began)
            with socket.socket() as probe:
                probe.settimeout(PROBE_SECONDS)
                if probe.connect_ex((host, int(port))) == 0:
                    return time.monotonic() - began
            time.sleep(POLL_SECONDS)
