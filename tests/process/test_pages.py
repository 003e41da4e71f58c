"""Pages for users, run as a reader would: in order, in one directory, with a node of their own.

Every block of Python and every command that a page shows is run here, or is named below with where
it is run, or why it is not.
"""

import ast
import asyncio
import inspect
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import duolog
import pytest
from duolog.testing._node import SMALL_FILES, SmallNode
from duolog.testing._ports import free_endpoint

from duolog_server.demo.certificates import Authority
from tests.documented import PAGES, ROOT, Block, Command, blocks
from tests.process.forks import COMMANDS, environment
from tests.until import WAIT_SECONDS, slowness, wait_until

T = TypeVar("T")
Names = dict[str, Any]
ENDPOINT = "127.0.0.1:8081"  # of a page's node; commands call it where they are not told another
STARTS = "duolog node start"
NAMED = re.compile(r"# (\w+\.py)\n")  # a program that the reader saves, and runs by a command
BEHIND = re.compile(r"&\s*(#.*)?$")  # a command in the background


# A command as a fork of a process that has loaded it, with this terminal's files and variables.
COMMAND = f"""#!{sys.executable} -SE
import json, os, socket, sys
forks = socket.socket(fileno=int(os.environ["FORKS"]))
reads, writes = os.pipe()
request = {{
    "words": sys.argv[1:], "directory": os.getcwd(), "module": "", "clock": "",
    "environment": dict(os.environ),
}}
socket.send_fds(forks, [json.dumps(request).encode()], [0, 1, 2, writes])
forks.detach()
os.close(writes)
sys.exit(int(os.fdopen(reads).read().split()[1]))
"""


class Enough(Exception):
    """Raised by what a block calls: it would not end by itself."""


class Terminal:
    """A shell in a directory, which runs one command after the other, and jobs beside them."""

    def __init__(self, directory: Path, variables: dict[str, str]) -> None:
        self._file = directory / "terminal.log"
        (directory / "bin").mkdir()
        command = directory / "bin" / "duolog"
        command.write_text(COMMAND)
        command.chmod(0o755)
        forks = COMMANDS.asks()
        self._yes = subprocess.Popen(["yes"], stdout=subprocess.PIPE)  # to all that is asked
        script, self._script = os.pipe()
        self._ends, self._says = os.pipe()
        with self._file.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash", "--norc", f"/dev/fd/{script}"],
                stdin=self._yes.stdout,
                stdout=output,
                stderr=output,
                cwd=directory,
                env={**variables, "FORKS": str(forks)},
                pass_fds=[script, self._says, forks],
                process_group=0,
            )
        os.close(script)

    def run(self, line: str) -> None:
        """Run a command, which must succeed."""
        began = self.size()
        os.write(self._script, f"{line}\necho $? >&{self._says}\n".encode())
        ended, _, _ = select.select([self._ends], [], [], WAIT_SECONDS * slowness())
        assert ended, f"{line}: has not ended; it printed\n{self.printed(began)}"
        status = int(os.read(self._ends, 8))
        assert status == 0, f"{line}: exit status {status}; it printed\n{self.printed(began)}"

    def print(self, text: str) -> None:
        """Add a text to the output."""
        with self._file.open("a") as file:
            file.write(text)

    def size(self) -> int:
        """Size of the output so far, in bytes."""
        return self._file.stat().st_size

    def printed(self, began: int = 0) -> str:
        """The output from a byte on."""
        return self._file.read_bytes()[began:].decode()

    def close(self) -> None:
        """End the shell and its jobs."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._yes.kill()
        self._yes.communicate()
        for number in (self._script, self._ends, self._says):
            os.close(number)


class ShownNode(SmallNode):
    """A node with the words of a page, and small files."""

    def __init__(self, directory: Path, words: list[str]) -> None:
        name = words[words.index("--name") + 1] if "--name" in words else "node"
        super().__init__(directory / name, log=directory / f"{name}.log")
        self.endpoint = words[words.index("--listen") + 1]
        self._words = words

    def words(self) -> list[str]:
        """Arguments as the page shows them, and those for small files."""
        return [*self._words, *SMALL_FILES]


def started(line: str) -> str:
    """A command that starts a node, with the listener that it has by default; empty for others."""
    if not line.startswith(STARTS):
        return ""
    line = BEHIND.sub("", line).partition(" #")[0].replace("…", "")
    return line if "--listen" in line else f"{line} --listen {ENDPOINT}"


def plain(line: str) -> str:
    """A line with single spaces, as columns are aligned differently in a pipe."""
    return " ".join(line.split())


class Reader:
    """Follows a page: saves its programs, types its commands, and starts its nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoint = free_endpoint()
        self._endpoints = {ENDPOINT: self.endpoint}
        self._nodes: list[ShownNode] = []
        self._terminal = Terminal(
            directory,
            {
                **environment(),
                "DUOLOG_ENDPOINTS": self.endpoint,
                "HOME": str(directory),
                "PATH": f"{directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )
        self.names: Names = {}

    def read(self, page: str) -> None:
        """Run everything on it. Raises AssertionError where something fails."""
        shown = [block for block in blocks(ROOT / page, "console", "python") if run_here(block)]
        commands = [one.line for block in shown for one in block.commands() if typed(one)]
        if not any(ENDPOINT in started(line) for line in commands):
            self._start_node(f"{STARTS} --data /var/lib/duolog")
        if page in BEFORE:
            self.names = asyncio.run(self._with_client(BEFORE[page]))
        if page in OFFLINE:
            self._nodes[0].stop()
        for block in shown:
            if block.language == "python":
                self._program(block)
            for command in block.commands():
                if typed(command):
                    self._command(command)

    def here(self, text: str) -> str:
        """Text with the endpoints and directories of this run in place of those of the page."""
        text = re.sub(r"\b10\.0\.0\.\d:8081", ENDPOINT, text)
        text = re.sub(
            r"\b127\.0\.0\.1:\d+",
            lambda found: self._endpoints.setdefault(found[0], free_endpoint()),
            text,
        )
        return re.sub(r"(?<!\S)/(tmp|backup|var/lib)/", f"{self.directory}/", text)

    def close(self) -> None:
        """End the shell and the nodes."""
        self._terminal.close()
        for node in self._nodes:
            node.end()

    def _program(self, block: Block) -> None:
        text = self.here(block.text)
        if not re.search("^(import|from) ", text, re.MULTILINE):
            asyncio.run(self._with_client(lambda client: self._part(text, client)))
            return
        named = NAMED.match(text)
        name = named[1] if named else f"block_{block.line}.py"
        (self.directory / name).write_text(text)
        if not named:
            self._terminal.run(f"python {name}")

    async def _part(self, text: str, client: duolog.Client) -> None:
        """Run a part of a program, which has a client and a loop already."""
        code = compile(text, "part", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        part = FunctionType(code, {"duolog": duolog, "client": client, **self.names})
        with suppress(Enough):
            made = part()
            if inspect.isawaitable(made):
                await asyncio.wait_for(made, WAIT_SECONDS * slowness())

    async def _with_client(self, work: Callable[[duolog.Client], Awaitable[T]]) -> T:
        async with duolog.Client(self.endpoint) as client:
            return await work(client)

    def _command(self, command: Command) -> None:
        if command.line.startswith(STARTS):
            self._start_node(command.line)
            return
        line = self.here(command.line)
        if line.startswith("kill %"):
            job = line.split()[1]
            line = f"pid=$(jobs -p {job}); kill {job}; wait $pid"
        began = self._terminal.size()
        program = self.directory / line.split()[1] if line.startswith("python ") else None
        if program is not None and "duolog.testing" in program.read_text():
            with redirect_stdout(StringIO()) as here:  # where nodes are forked already
                exec(compile(program.read_text(), program.name, "exec"), {})
            self._terminal.print(here.getvalue())
        else:
            self._terminal.run(line)

        def missing() -> set[str]:
            there = self._terminal.printed(began).splitlines()
            return {*map(plain, command.printed)} - {*map(plain, there)}

        if BEHIND.search(line):
            wait_until(lambda: not missing(), f"all that {line} prints")
        assert not missing(), f"{line} printed\n{self._terminal.printed(began)}"

    def _start_node(self, line: str) -> None:
        node = ShownNode(self.directory, shlex.split(self.here(started(line)))[1:])
        self._nodes.append(node)
        with suppress(duolog.Unauthenticated):  # it answers, and has users
            node.start()


# -- what pages need, and what is run elsewhere ---------------------------------------------------


async def consuming(client: duolog.Client) -> Names:
    """Dead letters, messages, and a handler that fails once and then ends the reading."""
    await client.admin.create_topic("orders", 1)
    async with client.producer() as producer, client.consumer("billing", "orders") as consumer:
        await producer.send_batch("orders", [b"dead"] * 18)
        for _ in range(18):
            message = await consumer.get(WAIT_SECONDS)
            assert message is not None
            await consumer.send_back(message, delay_level=-1)
        await consumer.get(0)  # the last one is consumed, too
        for region, amount in (("us", "200"), ("eu", "200"), ("eu", "3"), ("uk", "101")):
            await producer.send("orders", b"", properties={"region": region, "amount": amount})

    class NotNow(Exception):
        pass

    failed: list[str] = []

    async def bill(message: duolog.Message) -> None:
        if failed:
            assert (failed, message.properties["region"]) == (["eu"], "uk")
            raise Enough
        failed.append(message.properties["region"])
        raise NotNow

    return {"bill": bill, "NotNow": NotNow}


async def orders(client: duolog.Client) -> Names:
    """Messages with keys and tags."""
    await client.admin.create_topic("orders", 4)
    async with client.producer() as producer:
        for number in range(10):
            await producer.send("orders", b"duck", key=f"order-{number}", tags="paid")
    return {}


async def paid(client: duolog.Client) -> Names:
    """A dead letter, and what a transaction calls."""
    await client.admin.create_topic("orders", 8, message_type="FIFO")
    async with client.producer() as producer:
        await producer.send("orders", b"", key="order-7")
    async with client.consumer("billing", "orders") as consumer:
        message = await consumer.get(WAIT_SECONDS)
        assert message is not None
        await consumer.send_back(message, delay_level=-1)

    async def pay(number: int) -> None:
        assert number == 7

    return {"pay": pay, "was_paid": pay}


async def password(client: duolog.Client) -> Names:
    """Topics, a password, and a file with an authority."""
    Authority(Path())
    Path(".duolog-password").write_text("secret\n")
    Path(".duolog-password").chmod(0o600)
    await client.admin.create_topic("orders", 1)
    await client.admin.create_topic("greetings", 1)
    return {"password": "secret"}


BEFORE: dict[str, Callable[[duolog.Client], Awaitable[Names]]] = {
    "docs/backup.md": orders,
    "docs/connecting.md": password,
    "docs/console.md": orders,
    "docs/consuming.md": consuming,
    "docs/formats.md": orders,
    "docs/rocketmq.md": paid,
}
OFFLINE = ("docs/formats.md",)  # its commands are for a directory without a node
RUN = (
    "README.md",
    "client/README.md",
    "docs/coming-from.md",
    "docs/consuming.md",
    "docs/producing.md",
    "docs/tutorial.md",
)
RUN_WITH_THE_LONG_TESTS = (
    "docs/access.md",
    "docs/backup.md",
    "docs/connecting.md",
    "docs/console.md",
    "docs/formats.md",
    "docs/quotas.md",
    "docs/replication.md",
    "docs/rocketmq.md",
)
ELSEWHERE = {
    "CONTRIBUTING.md": "verbs of the Makefile",
    "docs/cluster.md": "tests/cluster/test_containers.py, where a Docker engine answers",
    "docs/deploying.md": "tests/cluster/test_deploying.py, without Kubernetes and systemd",
    "docs/failover.md": "tests/process/test_failover.py, with etcd",
    "docs/migrating.md": "tests/conformance/test_migration.py, with brokers of RocketMQ",
    "docs/retention.md": "tests/ops/cli/test_topictrim.py",
    "docs/moving.md": "tests/ops/cli/test_topicmoves.py, with two replica groups",
    "docs/mqadmin.md": "tests/conformance/test_mqadmin.py, with RocketMQ's",
    "docs/performance.md": "measurements",
    "docs/pipeline.md": "tests/pipeline/test_jobs.py, with Java",
    "docs/remoting.md": "tests/conformance, with RocketMQ's clients",
    "docs/simulation.md": "verbs of the Makefile",
    "docs/sizing.md": "measurements",
    "docs/spark.md": "tests/pipeline/test_jobs.py, with Java",
    "docs/testing.md": "tests/client/test_testing.py",
    "docs/tracing.md": "tests/client/test_spans.py",
    **{
        str(page.relative_to(ROOT)): "tests/cluster/test_alerts.py: incidents, so only parsed"
        for page in (ROOT / "docs" / "runbooks").glob("*.md")
    },
}
# Programs by a part, and blocks by their first command: where they are run.
BLOCKS = {
    "consumer.run(bill, concurrency=32": "tests/node/consuming/test_workers.py",
    "print(message.keys, message.body)\n\n\nwith (": "tests/node/consuming/test_workers.py",
    "from rocketmq import": "tests/conformance",
    "$ make certs": "tests/certificates.py",
    "$ duolog user create alice --signs": "tests/process/test_users.py",
    "$ protoc": "tests/ops/console",
}
# Commands by a part: where they are run, or why not.
COMMANDS_ELSEWHERE = {
    "pip install": "tests/test_dist.py installs the built files",
    "make demo": "takes a minute; CI runs it",
    "pytest test_billing.py": "tests/client/test_testing.py runs it in a session of its own",
    "--watch": "does not end",
    "duolog console": "tests/process/test_console.py",
    "--console": "tests/process/test_console.py",
    "msg recall": "tests/process/test_cli.py",
    "msg decide": "tests/process/test_cli.py",
    "--until 2026-01-31": "tests/process/test_backup.py, at a time that a backup has",
    "restore /backup/tuesday /var/lib/duolog": "tests/process/test_backup.py, into an empty one",
}


def run_here(block: Block) -> bool:
    """Whether a block is run here, but for single commands."""
    shown = block.text if block.language == "python" else block.text.partition("\n")[0]
    return not any(part in shown for part in BLOCKS)


def typed(command: Command) -> bool:
    """Whether a command is run here."""
    return not any(part in command.line for part in COMMANDS_ELSEWHERE)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    with closing(Reader(tmp_path)) as made:
        yield made


@pytest.mark.parametrize(
    "page",
    [*RUN, *(pytest.param(page, marks=pytest.mark.long) for page in RUN_WITH_THE_LONG_TESTS)],
)
def test_a_page_runs_as_it_is(page: str, reader: Reader) -> None:
    reader.read(page)


def test_every_block_is_run_here_or_elsewhere() -> None:
    shown = {
        str(page.relative_to(ROOT)): blocks(page, "console", "python")
        for page in PAGES
        if blocks(page, "console", "python")
    }
    assert sorted([*RUN, *RUN_WITH_THE_LONG_TESTS, *ELSEWHERE]) == sorted(shown)
    reasons = " ".join([*ELSEWHERE.values(), *BLOCKS.values(), *COMMANDS_ELSEWHERE.values()])
    tests = re.findall(r"tests/[\w/]+(?:\.py)?", reasons)
    assert [name for name in tests if not (ROOT / name).exists()] == []
    run = (*RUN, *RUN_WITH_THE_LONG_TESTS)
    text = "".join(block.text for page in run for block in shown[page])
    assert [part for part in (*BLOCKS, *COMMANDS_ELSEWHERE) if part not in text] == []
    saved = [(page, found[1]) for page in run for block in shown[page]
             if block.language == "python" and (found := NAMED.match(block.text))]  # fmt: skip
    assert [
        (page, name)
        for page, name in saved
        if not any(name in one.line for block in shown[page] for one in block.commands())
    ] == []
