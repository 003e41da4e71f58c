"""The console beside a node: a process of its own, so that it never slows the log.

It gets the node's sockets and lives no longer than the node: its standard input ends with it. One
that ends by itself is started again, at growing intervals.
"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import structlog
from duolog._background import Background, report

from duolog_server.node.runtime.restarts import Restarts

log = structlog.get_logger("duolog.node")

AGAIN_SECONDS_MAX = 60.0
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Options of a console's process.

    endpoints: the nodes that it calls. host: that it listens on. tls: it calls them over TLS, with
    the authorities in the file ca, empty for the system's. cert, key: files with its own
    certificate and key; empty for plain text. log_json: it writes its log as JSON. origins: see
    Settings. protobuf, mask: rules of how bodies are shown, as in the configuration. vouching: the
    key, in hexadecimal, with which it vouches for the addresses of its viewers; empty: it does not.
    """

    endpoints: tuple[str, ...]
    host: str
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    log_json: bool = False
    origins: tuple[str, ...] = ()
    protobuf: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    vouching: str = field(default="", repr=False)

    def line(self) -> str:
        """Encode as a line of text."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_line(line: str) -> "ConsoleOptions":
        """Parse `line`'s output."""
        fields = json.loads(line)
        lists = {name: tuple(fields[name]) for name in ("endpoints", "origins", "protobuf", "mask")}
        return ConsoleOptions(**{**fields, **lists})


class ConsoleProcess:
    """The process, restarted when it ends."""

    def __init__(self, options: ConsoleOptions, sockets: Sequence[socket.socket]) -> None:
        """sockets: that listen; they are closed by `stop`."""
        self._options = options
        self._sockets = sockets
        self._background = Background(report)
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def pid(self) -> int:
        """Process id of the running console; 0: none runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    def start(self) -> None:
        """Start the process, and restart it if it ends."""
        self._background.start(self._keep())

    async def stop(self) -> None:
        """End it."""
        await self._background.stop()
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        for one in self._sockets:
            one.close()

    async def _keep(self) -> None:
        """Start it, and start it again whenever it ends."""
        loop, restarts = asyncio.get_running_loop(), Restarts(AGAIN_SECONDS_MAX)
        while True:
            began = loop.time()
            try:
                why = f"exit status {await self._run()}"
            except OSError as error:
                why = f"cannot start it: {error}"
            log.warning("the console ended and is started again", reason=why)
            await asyncio.sleep(restarts.pause(loop.time() - began))

    async def _run(self) -> int:
        """Start it; its exit status once it has ended. Raises OSError.

        Its session is its own: Ctrl-C in the node's terminal is for the node. Nothing runs in the
        child before its program: a function that did would have the node forked, all its memory
        mapped twice and with gRPC's threads started again.
        """
        numbers = [one.fileno() for one in self._sockets]
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no modules of the directory that the node runs in
            "-m",
            "duolog_server.ops.console",
            stdin=asyncio.subprocess.PIPE,
            pass_fds=numbers,
            start_new_session=True,
        )
        self.starts += 1
        assert process.stdin is not None, "it is a pipe"
        words = " ".join(map(str, numbers))
        process.stdin.write(f"{self._options.line()}\n{words}\n".encode())
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        return await process.wait()
