"""The JSON dialect of RocketMQ's config files, and their atomic replacement with a backup.

Written as fastjson's pretty form: tabs, no space after a colon, integer map keys without quotes
(which is not strict JSON). Read in either form.
"""

import json
import re
from typing import Any

from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreFile

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])\s*(-?\d+)\s*:', re.DOTALL)


def dumps(value: Any, depth: int = 0) -> str:
    """Text of a value: dicts with int keys write them bare."""
    if isinstance(value, dict):
        if not value:
            return "{}"
        pad = "\t" * (depth + 1)
        pairs = ",\n".join(
            f"{pad}{key if isinstance(key, int) else json.dumps(key, ensure_ascii=False)}:"
            f"{dumps(item, depth + 1)}"
            for key, item in value.items()
        )
        return "{\n" + pairs + "\n" + "\t" * depth + "}"
    if isinstance(value, list):
        return "[" + ",".join(dumps(item, depth) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def loads(text: str) -> Any:
    """Value of a text; bare integer keys become strings. ValueError if it is none."""

    def quote(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else f'"{found[1]}":'

    try:
        return json.loads(_TOKEN.sub(quote, text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def save(disk: Disk, path: str, value: Any) -> None:
    """Replace a file: old or new content survives any crash, and the old stays as `.bak`."""
    replace(disk, path, dumps(value).encode())


def replace(disk: Disk, path: str, data: bytes, backup: bool = True) -> None:
    """Replace a file's bytes, atomically and durably. backup: the old file stays as `.bak`."""
    disk.write(path + ".tmp", data)
    if backup and disk.size(path) >= 0:
        disk.rename(path, path + ".bak")
    disk.rename(path + ".tmp", path)
    disk.sync_dir(path.rpartition("/")[0])


def load(disk: Disk, path: str) -> Any | None:
    """Read a file or, where it is missing, empty or broken, its backup; None if neither is.

    Raises BadStoreFile if something is there and nothing of it can be read.
    """
    problem = None
    for candidate in (path, path + ".bak"):
        if disk.size(candidate) <= 0:
            continue
        try:
            value = loads(disk.read(candidate).decode())
        except (ValueError, UnicodeDecodeError) as error:
            problem = problem or str(error)
            continue
        if isinstance(value, dict):
            return value
        problem = problem or "is not a JSON object"
    if problem is not None:
        raise BadStoreFile(path, f"neither it nor its backup can be read: {problem}")
    return None
