"""The tiered part of topics: Parquet files with the older part of queues, by manifests."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duolog._columns import crc32
from duolog._errors import BadRequest
from duolog.spark._plan import Queue, QueueRange
from duolog.spark._tierfile import TierFile, check_size

MANIFEST = "_manifest"
LOG = "log"  # beside the manifests of a group: whose log it is
Epochs = Mapping[int, tuple[int, str]]  # by number: start offset and nonce
Span = tuple[int, int]  # queue offsets [first, end)


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as its file has it, with a checksum over the rest."""
    return json.dumps({**manifest, "crc32": _checksum(manifest)}, ensure_ascii=False)


def _checksum(manifest: dict[str, Any]) -> int:
    rest = {name: value for name, value in manifest.items() if name != "crc32"}
    return crc32(json.dumps(rest, sort_keys=True).encode())


def read_manifest(path: Path) -> dict[str, Any]:
    """Parse `manifest_text`'s output. Raises OSError, ValueError for a damaged one."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if "log" in found and found.get("crc32") != _checksum(found):
        raise ValueError("its checksum does not match")
    try:
        if found["rows"] != sum(file["rows"] for file in found["files"]):
            raise ValueError("the row counts of its files do not add up")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return found


class Tier:
    """The files of a tiered store, and which offsets of which queues they hold."""

    def __init__(self, root: str) -> None:
        """Read the manifests. Raises BadRequest if there are none, or one is damaged."""
        self._root = Path(root)
        self._spans: dict[Queue, list[tuple[int, int, str]]] = {}
        self._files: dict[str, dict[str, Any]] = {}
        self.epochs: dict[str, dict[int, tuple[int, str]]] = {}  # by group
        paths = sorted((self._root / MANIFEST).glob("*/*.json"))
        if not paths:
            raise BadRequest(f"option 'tier': {root} has no {MANIFEST}/GROUP/SEGMENT.json")
        for path in paths:
            try:
                self._take(read_manifest(path))
            except (ValueError, KeyError, TypeError) as error:
                raise BadRequest(
                    f"option 'tier': {path} is not a valid manifest ({error})"
                ) from None

    def _take(self, manifest: dict[str, Any]) -> None:
        group = str(manifest["group"])
        known = self.epochs.setdefault(group, {})
        for number, start, nonce in manifest.get("log", {}).get("epochs", ()):
            known[int(number)] = int(start), str(nonce)
        for file in manifest["files"]:
            path = str(file["path"])
            self._files[path] = file
            for queue_id, (first, end) in file["queues"].items():
                queue = Queue(str(file["topic"]), group, int(queue_id))
                self._spans.setdefault(queue, []).append((int(first), int(end), path))

    def check_log(self, group: str, epochs: Epochs) -> None:
        """Raise BadRequest if a group's nodes hold another log than these files are of."""
        known = self.epochs.get(group, {})
        for number in sorted(known.keys() & epochs.keys()):
            if known[number] != epochs[number]:
                raise BadRequest(
                    f"option 'tier': {self._root} holds another log for replica group {group!r}: "
                    f"its epoch {number} is {_told(known[number])}, that of the nodes "
                    f"{_told(epochs[number])}"
                )

    def check_names(self, group: str, epochs: Epochs) -> None:
        """Raise BadRequest if files hold a group's log under the name of another group: they
        would be skipped. Another cluster's group has another log."""
        for name, known in sorted(self.epochs.items()):
            if name != group and known.items() & epochs.items():
                raise BadRequest(
                    f"option 'tier': {self._root} holds the log of replica group {group!r} under "
                    f"the name {name!r}: tier it again with --group {group}, into another folder; "
                    "plain Spark reads this one as it is"
                )

    def queues(self) -> list[Queue]:
        """All queues that the files hold something of."""
        return sorted(self._spans)

    def held(self, queue: Queue) -> list[Span]:
        """The offsets that the files hold of a queue: spans in order, with gaps between them.

        A segment is missing where its manifest is: a job that died, or still runs, writes segments
        in any order, and a job of another replica began at another one.
        """
        return merged((first, end) for first, end, _ in self._spans.get(queue, ()))

    def parts(self, ranges: list[QueueRange]) -> list[TierFile]:
        """The files that hold some ranges. Raises TierDamaged for one with another size."""
        by_path: dict[str, list[QueueRange]] = {}
        for part in ranges:
            for first, end, path in self._spans.get(part.queue, ()):
                low, high = max(first, part.start), min(end, part.end)
                if low < high:
                    by_path.setdefault(path, []).append(QueueRange(part.queue, low, high))
        return [self._part(path, found) for path, found in sorted(by_path.items())]

    def _part(self, path: str, ranges: list[QueueRange]) -> TierFile:
        file = self._files[path]
        size, checksum = int(file["bytes"]), file.get("crc32")
        check_size(self._root / path, size)
        return TierFile(
            str(self._root / path),
            ranges[0].queue.topic,
            tuple(ranges),
            int(file["rows"]),
            size,
            None if checksum is None else int(checksum),
        )


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of the messages of a range."""

    files: list[QueueRange]
    nodes: list[QueueRange]
    gone: list[QueueRange]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, those that meet as one."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return found


def sources(part: QueueRange, held: list[Span], on_nodes: Span) -> Sources:
    """Each offset of a range once: from the files what they hold, as nodes may drop that at any
    time, and from the nodes the rest.

    held: of its queue, in order. on_nodes: what the nodes have of the queue.
    """
    found = Sources([], [], [])
    at = part.start
    for first, end in [*held, (part.end, part.end)]:
        first, end = min(max(first, at), part.end), min(max(end, at), part.end)
        low, high = (min(max(edge, at), first) for edge in on_nodes)
        for kind, start, stop in (
            (found.gone, at, low),
            (found.nodes, low, high),
            (found.gone, max(low, high), first),
            (found.files, first, end),
        ):
            if start < stop:
                kind.append(QueueRange(part.queue, start, stop))
        at = end
    return found


def _told(epoch: tuple[int, str]) -> str:
    return f"nonce {epoch[1]} from {epoch[0]} on"
