"""Ports reserved for programs of this machine before anything listens on them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from duolog.testing import _ports as ports

from tests.process.support import ROOT


@pytest.fixture(autouse=True)
def own_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "SHARED", tmp_path)


def test_no_port_is_given_twice_to_two_processes_whatever_their_tmpdir(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from duolog.testing import _ports as ports\n"
        "ports.SHARED = pathlib.Path(sys.argv[1])\n"
        "print(*ports.free_ports(40))"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path / name)},
        )
        for name in ("one", "two")
    ]
    given = [int(port) for child in running for port in child.communicate()[0].split()]
    assert len(given) == len(set(given)) == 80


def test_the_last_port_is_remembered_elsewhere_where_there_is_no_shared_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "SHARED", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = ports.free_ports(1), ports.free_ports(1)
    assert first != second
    assert [path.name for path in tmp_path.iterdir()] == [f"duolog-ports-{os.getuid()}"]


def test_no_port_is_one_that_the_kernel_gives_to_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(ports.FIRST <= port < lowest for port in ports.free_ports(100))


def test_ports_in_use_are_skipped_around_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # one of the range may belong to a node of another test
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", port - 1)
        monkeypatch.setattr(ports, "_end", lambda: min(port + 20, 1 << 16))
        assert port not in ports.free_ports(1)
    monkeypatch.setattr(ports, "_end", lambda: ports.FIRST + 20)
    monkeypatch.setattr(ports, "_is_free", lambda port: True)  # also where another test listens
    given = ports.free_ports(5) + ports.free_ports(5) + ports.free_ports(5)
    assert set(given) <= set(range(ports.FIRST, ports.FIRST + 20))
    assert not set(given[:5]) & set(given[5:10])
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 1 free ports"):
        ports.free_ports(1)


@pytest.mark.parametrize("said", ["", "nonsense", "99999999", "-1"])
def test_a_damaged_file_restarts_the_range(tmp_path: Path, said: str) -> None:
    ports.free_ports(1)
    (cursor,) = tmp_path.iterdir()
    cursor.write_text(said)
    assert ports.FIRST <= ports.free_ports(1)[0] < ports.FIRST + 100
