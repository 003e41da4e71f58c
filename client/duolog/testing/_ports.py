"""Ports of this machine for programs that must know them before anyone listens.

They lie below the range from which the kernel takes the ports of outgoing connections: none of
those can take a port while its node is stopped. Of every four, two are given out: a node serves the
port two below that of the remoting protocol as well.
"""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST = 10_000
DEFAULT_END = 32_768
SHARED = Path("/tmp")  # also of those whose TMPDIR is another
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _end() -> int:
    """One past the last port given out."""
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_END
    return lowest if lowest > FIRST + 1000 else DEFAULT_END


def _is_free(port: int) -> bool:
    """Whether the port is free, on every address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _cursor() -> Path:
    """The file that remembers the last port given.

    A port is free for others while its node is stopped. With a file for each TMPDIR, two runs of
    the tests would give the same ports, and the clients of one would continue with a node of the
    other.
    """
    usable = SHARED.is_dir() and os.access(SHARED, os.W_OK | os.X_OK)
    directory = SHARED if usable else Path(tempfile.gettempdir())
    return directory / f"duolog-ports-{os.getuid()}"


def free_ports(count: int) -> list[int]:
    """Free ports, which no other caller on this machine gets soon.

    All processes of a user go through the range in turn. Raises OSError where the whole range is
    taken.
    """
    end, found = _end(), []
    with _cursor().open("a+") as cursor:
        fcntl.flock(cursor, fcntl.LOCK_EX)
        cursor.seek(0)
        said = cursor.read().strip()
        port = int(said) if said.isdecimal() else FIRST
        for _ in range(end - FIRST):
            port = port + 1 if FIRST <= port + 1 < end else FIRST
            if port & 2 and _is_free(port):
                found.append(port)
            if len(found) == count:
                break
        else:
            raise OSError(f"no {count} free ports between {FIRST} and {end}")
        cursor.truncate(0)
        cursor.write(str(port))
    return found


def free_endpoint() -> str:
    """A free HOST:PORT on this machine's loopback."""
    return f"127.0.0.1:{free_ports(1)[0]}"
