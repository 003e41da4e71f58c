"""The name of a replay: the sink records what it stands for and compares it when it is used again.

Rules: the first batch fixes it, in the record that publishes the batch; a run with other parameters
or other rows is refused before it sends anything. Paths and formats of files and the endpoints may
change: the digest identifies the rows.
"""

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Any

from duolog import Client, NoPermission
from duolog._sink import STAGED_BYTES_MAX, SinkState
from duolog.spark._writer import sink_group

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.replayoptions import Replay
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX

PREFIX = "replay-"
NAME_CHARACTERS_MAX = 255 - len(PREFIX)
RANGES_CHARACTERS_MAX = 6000
TEXT_CHARACTERS_MAX = 150  # of a parameter; of a longer one the start and a digest are kept
TIMEOUT = 30.0
MAX_BODY = "store.max_message_size"
Ranges = dict[str, tuple[int, int]]  # by "replica group/queue": [first, end)


class ReplayDiffers(BadJob):
    """A replay's name was used with another parameter, or for other rows.

    Attributes:
        name: of the replay.
        parameter: what differs.
        old, new: its values, as text.
    """

    def __init__(self, name: str, parameter: str, old: str, new: str) -> None:
        super().__init__(
            f'replay "{name}" was started with {parameter} = {old}, now it has '
            f"{parameter} = {new}: nothing was sent; run it with the first value, or "
            "give another --name"
        )
        self.name = name
        self.parameter = parameter
        self.old = old
        self.new = new


@dataclass(frozen=True)
class Rows:
    """All rows to be sent."""

    count: int
    digest: str
    batch_rows: int  # of each numbered batch: number k holds the rows from k times this on


@dataclass(frozen=True)
class Largest:
    """The most bytes that a row has of each part of a message."""

    body: int
    properties: int


def parameters_of(what: Replay) -> dict[str, str]:
    """The parameters that a name stands for, in addition to the rows."""
    found = {
        "--to": what.topic,
        "--from": what.source,
        "--sql": what.sql,
        "--body": what.body,
        "--key": what.key,
        "--tags": what.tags,
        "--time": what.time,
        "--order": ",".join(json.dumps(name, ensure_ascii=False) for name in what.order),
        "--rate": f"{what.rate:g}",
    }
    return {name: _short(value) for name, value in found.items()}


def _short(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return f"{text[: TEXT_CHARACTERS_MAX - 30]}... ({digest})"


class ReplayName:
    """The sink of a replay, with the results of earlier runs of the same name."""

    def __init__(self, what: Replay) -> None:
        """Query the cluster. Raises BadJob, ReplayDiffers, DuologError."""
        if len(what.name) > NAME_CHARACTERS_MAX or not (what.name.isprintable()):
            raise BadJob(
                f"--name {what.name[:40]!r}: a name must have at most "
                f"{NAME_CHARACTERS_MAX} printable characters"
            )
        self.name = what.name
        self.sink = PREFIX + (what.name or str(uuid.uuid4()))
        self.publisher = str(uuid.uuid4())  # this run
        self._endpoints, self._caller = what.endpoints, what.caller
        self._parameters = parameters_of(what)
        self._before: dict[str, Any] = {}  # as fixed by an earlier run
        self._group = ""
        self.contents = ""
        self.begun: SinkState | None = None
        if what.name:
            self._load(what)
        else:
            self._group = self._run(lambda made: sink_group(made, self.sink, what.topic))

    def _load(self, what: Replay) -> None:
        async def read(made: Client) -> tuple[str, SinkState | None]:
            # In all groups: with another --to, the sink may lie in another one.
            for group in [each.group for each in (await made.admin.route()).groups]:
                state = await (await made.sink(self.sink, group)).state()
                if state is not None:
                    return group, state
            return await sink_group(made, self.sink, what.topic), None

        self._group, self.begun = self._run(read)
        if self.begun is None:
            return
        try:
            self._before = dict(json.loads(self.begun.contents))
            old = {str(name): str(value) for name, value in self._before["parameters"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadJob(
                f'replay "{self.name}" was started by a version that did not record '
                "what it sends: it cannot continue safely; give another --name"
            ) from None
        for parameter in sorted(old.keys() | self._parameters.keys()):
            self._compare(parameter, old.get(parameter, ""), self._parameters.get(parameter, ""))
        if self.begun.lost_parts:
            raise BadJob(
                f'replay "{self.name}": {self.begun.lost_parts} of its requests were lost '
                "before they were stored (see the node's log); give another --name and send "
                "again"
            )

    def _compare(self, parameter: str, old: str, new: str) -> None:
        if old != new:
            raise ReplayDiffers(self.name, parameter, old or "(none)", new or "(none)")

    def _run(self, work: Any) -> Any:
        with self._caller.client(self._endpoints, TIMEOUT) as client:
            return client.run(work)

    # -- what is sent --------------------------------------------------------------------------

    def ranges(self, topic: str) -> Ranges:
        """The offsets of a source topic that this name stands for: those of the first run."""

        async def read(made: Client) -> Ranges:
            return {
                f"{part.group}/{stats.queue_id}": (stats.min_offset, stats.max_offset)
                for part in await made.admin.topics([topic])
                for stats in part.stats
            }

        now: Ranges = self._run(read)
        if not self._before:
            return now
        settled = {str(q): (int(a), int(b)) for q, (a, b) in self._before["ranges"].items()}
        # Queues that were added since are not read.
        return {queue: (end, end) for queue, (_, end) in now.items()} | settled

    def check_fits(self, largest: Largest, topic: str) -> None:
        """Raise BadJob if a node would refuse a row: earlier batches would be visible by then."""

        async def ask(made: Client) -> list[int]:
            try:
                nodes = (await made.admin.cluster_status()).nodes
            except NoPermission:
                return []  # then the sink reports it, and nothing of that batch is visible
            inside = [node for node in nodes if node.replication.group == self._group]
            found = [node.settings.get(MAX_BODY) for node in inside]
            return [int(size) for size in found if size]  # none: an older node does not say

        limit = min([STAGED_BYTES_MAX, *self._run(ask)])
        for what, found, most, cure in (
            ("body", largest.body, limit, f"raise {MAX_BODY} on all nodes of {self._group}, or "),
            ("properties", largest.properties, SENT_PROPERTIES_BYTES_MAX, ""),
        ):
            if found > most:
                raise BadJob(
                    f"topic {topic!r} takes no message as large as the largest row: {found:,} "
                    f"bytes of {what}, the limit is {most:,}; nothing was sent: {cure}leave such "
                    "rows out with --sql"
                )

    def settle(self, rows: Rows, ranges: Ranges) -> None:
        """Compare the rows to send with those that the name stands for. Raises ReplayDiffers."""
        if not self.name:
            return
        if self.begun is not None:
            for parameter, new in (
                ("rows", rows.count),
                ("digest of the rows", rows.digest),
                ("rows of a batch", rows.batch_rows),
            ):
                self._compare(parameter, str(self._before.get(parameter)), str(new))
            self.contents = self.begun.contents
            return
        told = {
            "parameters": self._parameters,
            "rows": rows.count,
            "digest of the rows": rows.digest,
            "rows of a batch": rows.batch_rows,
            "ranges": ranges,
        }
        if len(json.dumps(ranges)) > RANGES_CHARACTERS_MAX:
            raise BadJob(
                f"--from: the topic has {len(ranges)} queues, too many to record their "
                "offsets under a --name; leave out --name"
            )
        self.contents = json.dumps(told, ensure_ascii=False, separators=(",", ":"))

    # -- what was sent -------------------------------------------------------------------------

    def state(self) -> SinkState | None:
        """The last batch that the sink published."""

        async def read(made: Client) -> SinkState | None:
            return await (await made.sink(self.sink, self._group)).state()

        found: SinkState | None = self._run(read)
        return found

    def published(self, number: int, expected: int | None, sent: int) -> int:
        """Messages of the batch that this run has just published, as the sink counts them.

        sent: by this run before. Raises BadJob where another run published it, or others than
        expected were.
        """
        state = self.state()
        if state is None and not expected:
            return 0  # there were no rows
        if state is None or state.batch != number or state.publisher != self.publisher:
            raise BadJob(
                f'another run of replay "{self.name}" is sending its rows at the same '
                f"time: this run sent {sent:,} rows and stops; every row is sent once"
            )
        if expected is not None and state.batch_messages != expected:
            raise BadJob(
                f"batch {number} of the replay holds {state.batch_messages:,} messages, "
                f"expected {expected:,}: the source changed while it was read"
            )
        return state.batch_messages
