"""The console as a process: beside a node, whose life it shares, and by itself."""

import asyncio
import gc
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from duolog_server.demo.certificates import Authority
from duolog_server.node.runtime import consoleprocess, restarts
from duolog_server.node.runtime.consoleprocess import ConsoleOptions, ConsoleProcess
from duolog_server.ops.console.__main__ import NICE
from tests.keyfiles import access_files
from tests.process.support import NodeProcess, environment, refused, run_cli
from tests.until import wait_until

pytestmark = pytest.mark.process

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02
ROUNDS = 20
NICENESS_MAX = 19  # Linux has no more
QUIET = ("--set", "node.log_level=warning")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def alive(pid: int) -> bool:
    """Whether a thread of a process runs; one that ended, but was not waited for, does not.

    The first thread of a killed process can have ended while others still hold its sockets.
    """
    return any(_running(thread) for thread in Path("/proc").glob(f"{pid}/task/*/stat"))


def _running(thread: Path) -> bool:
    try:
        return thread.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_lives_as_long_as_any_thread_of_it_does() -> None:
    ends_its_first_thread = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "sys.stdout.write('.'); sys.stdout.flush()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", ends_its_first_thread], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.read(1) == b"."
        first = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
        wait_until(lambda: not _running(first))
        assert alive(process.pid)
        process.stdin.close()
        wait_until(lambda: not alive(process.pid))
        process.wait()


def consoles(parent: int) -> list[int]:
    """The processes of the console that a process started."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [pid for pid in map(int, children) if alive(pid) and _is_console(pid)]
    except OSError:
        return []


def _is_console(pid: int) -> bool:
    return b"duolog_server.ops.console" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def page(listen: str) -> str:
    with OPENER.open(f"http://{listen}/", timeout=WAIT_SECONDS) as answer:
        return str(answer.read().decode())


@contextmanager
def node_at(
    directory: Path, listen: str, *flags: str, user: str = "", password: str = ""
) -> Iterator[NodeProcess]:
    node = NodeProcess(directory / "a", *QUIET, "--set", f"console.listen={listen}", *flags)
    node.start(user, password)
    try:
        wait_until(lambda: consoles(node.pid))
        yield node
    finally:
        node.stop()


def test_a_console_that_is_killed_comes_back_and_ends_with_its_node(tmp_path: Path) -> None:
    listen = free_endpoint()
    with node_at(tmp_path, listen) as node:
        (first,) = consoles(node.pid)
        assert "One replica." in page(listen)
        os.kill(first, signal.SIGKILL)
        (second,) = wait_until(lambda: [pid for pid in consoles(node.pid) if pid != first])
        assert "One replica." in page(listen)
        # Its priority is its own, and it is out of reach of the node's terminal.
        given = os.getpriority(os.PRIO_PROCESS, node.pid) + NICE
        assert os.getpriority(os.PRIO_PROCESS, second) == min(given, NICENESS_MAX)
        assert os.getpgid(second) == second
        assert node.stop() == 0
        assert not alive(second)
        assert "console ended" in node.log_tail()
        assert "Traceback" not in node.log_tail()
        assert "Fatal" not in node.log_tail()


def test_the_console_of_a_node_vouches_for_the_addresses_of_its_viewers(tmp_path: Path) -> None:
    listen, log, viewer = free_endpoint(), tmp_path / "audit.log", "127.0.0.2"
    files = access_files(tmp_path, "pw")
    settings = {f"access.{name}": path for name, path in files.items()} | {"audit.file": log}
    flags = [word for item in settings.items() for word in ("--set", "=".join(map(str, item)))]
    with node_at(tmp_path, listen, *flags, user="root", password="pw"):
        host, _, port = listen.rpartition(":")
        browser = http.client.HTTPConnection(host, int(port), WAIT_SECONDS, (viewer, 0))
        headers = {
            "Origin": f"http://{listen}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        browser.request("POST", "/login", "user=root&password=wrong", headers)
        assert browser.getresponse().status == 401
        browser.close()
        # The audit log of a node has no rows before something is denied or changed.
        wait_until(lambda: log.exists() and viewer in log.read_text(), "the viewer's address")


def test_a_console_ends_with_a_node_that_is_killed(tmp_path: Path) -> None:
    listen = free_endpoint()
    with node_at(tmp_path, listen) as node:
        (console,) = consoles(node.pid)
        page(listen)
        node.kill()
        wait_until(lambda: not alive(console))
        with socket.socket() as probe:
            host, _, port = listen.rpartition(":")
            assert probe.connect_ex((host, int(port))) != 0


def open_files() -> int:
    """Descriptors of this process. Threads of other tests may open and close some meanwhile."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_twenty_deaths_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(consoleprocess, "AGAIN_SECONDS_MAX", 0.01)
    sockets = [socket.create_server(("127.0.0.1", 0))]
    console = ConsoleProcess(ConsoleOptions(("127.0.0.1:1",), "127.0.0.1"), sockets)
    seen: set[int] = set()

    async def next_one() -> int:
        while not console.pid or console.pid in seen:
            await asyncio.sleep(POLL_SECONDS)
        return console.pid

    console.start()
    async with asyncio.timeout(WAIT_SECONDS):
        seen.add(await next_one())
        files = open_files()
        for _ in range(ROUNDS):
            os.kill(console.pid, signal.SIGKILL)
            seen.add(await next_one())
    assert console.starts == ROUNDS + 1
    assert open_files() < files + ROUNDS // 2, "less than one of each"
    await console.stop()
    assert console.pid == 0
    assert not any(map(alive, seen))
    assert sockets[0].fileno() == -1
    assert open_files() < files + ROUNDS // 2


async def test_the_directory_that_a_node_runs_in_has_no_modules_of_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "node" / "console"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    sockets = [socket.create_server(("127.0.0.1", 0))]
    console = ConsoleProcess(ConsoleOptions(("127.0.0.1:1",), "127.0.0.1"), sockets)
    listen = f"127.0.0.1:{sockets[0].getsockname()[1]}"
    console.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as found:
            await asyncio.to_thread(page, listen)
        found.value.close()
        assert console.starts == 1
    finally:
        await console.stop()


@pytest.mark.long
def test_twenty_nodes_leave_no_console(tmp_path: Path) -> None:
    listen, seen = free_endpoint(), []
    for number in range(ROUNDS):
        with node_at(tmp_path, listen) as node:
            seen.extend(consoles(node.pid))
            if number % 2:
                node.kill()
        wait_until(lambda: not any(map(alive, seen)))  # the next one needs its port
    assert len(seen) == ROUNDS


def served(listen: str, authority: Path) -> int:
    """The serial number of the certificate that a port shows."""
    from cryptography.x509 import load_der_x509_certificate

    host, _, port = listen.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return load_der_x509_certificate(found).serial_number


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certs")
    one = authority.issue("node")
    listen = free_endpoint()
    flags = ("--set", f"tls.cert={one.cert}", "--set", f"tls.key={one.key}")
    with node_at(tmp_path, listen, *flags, "--set", "console.tls=true") as node:
        (console,) = consoles(node.pid)
        first = served(listen, authority.cert)
        authority.issue("node")
        wait_until(lambda: served(listen, authority.cert) != first)
        assert consoles(node.pid) == [console]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--listen", "nowhere"), "--listen 'nowhere' is not HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "is not HOST:PORT"),
        (("--endpoints", "n1"), "n1"),
        (("--cert", "none.pem"), "--cert and --key go together"),
        (("--cert", "none.pem", "--key", "none.key"), "cannot read none.pem"),
    ],
)
def test_a_console_with_wrong_words_says_which(flags: tuple[str, ...], told: str) -> None:
    done = run_cli("console", *flags)
    assert done.returncode not in (0, 130)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_console_whose_port_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_cli("console", "--listen", listen)
    assert done.returncode not in (0, 130)
    assert f"cannot listen on {listen}: Address already in use" in done.stderr


def test_a_console_whose_nodes_are_mute_says_so_and_ends_when_interrupted(tmp_path: Path) -> None:
    listen, nobody = free_endpoint(), free_endpoint()
    command = [sys.executable, "-m", "duolog_server.ops.cli.main", "console"]
    console = ChildProcess(
        "console",
        [*command, "--listen", listen, "--endpoints", nobody],
        tmp_path / "log",
        environment=environment(),
    )
    console.start()
    try:
        console.wait_listening(listen)
        with pytest.raises(urllib.error.HTTPError) as found:
            page(listen)
        with found.value as answer:
            assert answer.code == 503
            assert f"Asked: {nobody}." in answer.read().decode()
        assert console.process is not None
        console.signal(signal.SIGINT)
        assert console.process.wait(WAIT_SECONDS) in (0, 130)
        assert f"http://{listen}/" in console.log_tail()
        assert "Traceback" not in console.log_tail()
    finally:
        console.stop()


def test_a_console_beside_a_node_ends_with_its_input_and_when_it_is_told_to() -> None:
    with ThreadPoolExecutor() as pool:  # each waits for a node that does not answer
        for ended in [pool.submit(_end_console, number) for number in (None, signal.SIGTERM)]:
            ended.result()


def _end_console(number: signal.Signals | None) -> None:
    """Have one serve, and end it. number: None ends its input."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listen = f"127.0.0.1:{listening.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "duolog_server.ops.console"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env=environment(),
        )
        assert process.stdin is not None
        options = ConsoleOptions(("127.0.0.1:1",), "127.0.0.1")
        process.stdin.write(f"{options.line()}\n{listening.fileno()}\n".encode())
        process.stdin.flush()
    with pytest.raises(urllib.error.HTTPError) as found:
        page(listen)  # it serves
    found.value.close()
    if number is None:
        process.stdin.close()
        process.stdin = None
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, said) == (0, b"")


def test_a_file_of_descriptors_that_is_wrong_is_told_and_stops_no_node(tmp_path: Path) -> None:
    console = free_endpoint()
    rule = f"console.protobuf=orders*={tmp_path}/none.desc:shop.Order"
    node = NodeProcess(tmp_path / "data", "--set", f"console.listen={console}", "--set", rule)
    node.start()
    try:
        node.wait_listening(console)
        wait_until(lambda: "bodies cannot be shown as Protobuf" in node.log.read_text())
        assert "none.desc: No such file or directory" in node.log.read_text()
    finally:
        node.stop()


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--protobuf", "orders=/none.desc:shop.Order", "cannot read /none.desc"),
        ("--protobuf", "orders", "not of the form TOPIC=FILE:TYPE"),
        ("--mask", "orders", "not of the form TOPIC=hidden"),
    ],
)
def test_a_console_with_a_wrong_rule_does_not_start(flag: str, value: str, told: str) -> None:
    refused(run_cli("console", "--listen", "127.0.0.1:0", flag, value), told)
