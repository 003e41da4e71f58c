"""The audit log's file: JSON lines, and older files beside it as FILE.1, FILE.2 and so on.

Rules: it is used by one thread at a time. A line is written whole or not at all: what a failed
write, or a crash, left of one is cut off. A file that somebody moved or deleted gets no further
line: the next one begins a new file. Nothing is readable for others than the node's user.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 128 << 10  # more than a line


class AuditFile:
    """Writes lines; begins a new file when one is full."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        """bytes_max: of a file. files_max: with the older ones."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._fd = -1
        self._size = 0

    def write(self, lines: Sequence[bytes]) -> int:
        """Append the first of some lines, as many as fit into a file, and have them on disk; how
        many. Raises OSError: then none of them is there.
        """
        self.open()
        if self._size and self._size + len(lines[0]) + 1 > self._bytes_max:
            self._rotate()
        end, size = 0, self._size
        while end < len(lines) and (not end or size + len(lines[end]) < self._bytes_max):
            size += len(lines[end]) + 1
            end += 1
        self._append(b"".join(line + b"\n" for line in lines[:end]))
        return end

    def open(self) -> None:
        """Open it where it is not open. Raises OSError."""
        if self._fd >= 0 and not self._is_there():
            self.close()
        if self._fd < 0:
            self._open_anew()
        self._size = os.fstat(self._fd).st_size  # somebody may have truncated it

    def _is_there(self) -> bool:
        """Whether the open file is still the one of its name."""
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # it is not known
            return True
        return os.path.samestat(found, os.fstat(self._fd))

    def _open_anew(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", str(self._path))
            start = max(0, found.st_size - TAIL_BYTES)
            tail = os.pread(self._fd, found.st_size - start, start)
            whole = start + tail.rfind(b"\n") + 1
            if whole != found.st_size and (whole > start or not start):
                os.ftruncate(self._fd, whole)
        except BaseException:
            self.close()
            raise

    def _append(self, data: bytes) -> None:
        before, rest = self._size, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
            self._size = before + len(data)
        except OSError:
            try:
                os.ftruncate(self._fd, before)
            finally:
                self.close()  # it is opened anew, and looked at
            raise

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._files_max == 1:
            self._path.unlink(missing_ok=True)
        self.open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def close(self) -> None:
        """Close it; the next write opens it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
