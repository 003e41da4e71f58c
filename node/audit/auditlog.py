"""The audit log of a node: takes entries from calls, and writes them in the background.

Rules: `note` never waits. File and topic have a queue each, so that neither waits for the other;
what finds no room in one is counted, logged, and told in its place by an entry of its own. Of what
could not be written, it tries again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog
from duolog import _errors as sdk
from duolog._background import together

from duolog_server.node.audit.auditfile import AuditFile
from duolog_server.node.audit.entry import Decision, Entry, Repeats
from duolog_server.node.core.core import Core
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.runtime.config import AuditSection
from duolog_server.node.upkeep.threadwork import DaemonThreads, done_in_thread
from duolog_server.store.columns import Columns
from duolog_server.store.errors import StoreError
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import AUDIT_TOPIC
from duolog_server.store.record import encode_properties
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

WAITING_MAX = 10_000  # entries
AT_ONCE_BYTES = 256 << 10  # of lines that are written together
AGAIN_SECONDS = 1.0
TICK_SECONDS = 1.0
END_SECONDS = 3.0  # that a stop waits for a write
QUEUE = 0


@dataclass(slots=True)
class Batch:
    """Lines that are written together.

    Attributes:
        done: so many of them are, whatever becomes of the task that waits for it.
        dropped: they are not for this place, and done without being written.
    """

    lines: list[bytes]
    tags: list[str]
    done: int = 0
    dropped: bool = False


class Outlet:
    """Entries on their way to one place."""

    def __init__(self, to: str, node: str, write: Callable[[Batch], Awaitable[None]]) -> None:
        """to: its name. write: leaves a batch undone where that may work later."""
        self.to = to
        self._node = node
        self._write = write
        self._waiting: deque[tuple[bytes, str]] = deque()
        self._some = asyncio.Event()
        self._left_out = self._left_out_ms = 0  # since the last one that found room; the last of it
        self.lost = 0
        self.written = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: Entry) -> None:
        """Take an entry, or count it."""
        if len(self._waiting) >= WAITING_MAX:
            if not self._left_out:
                log.warning("audit entries are lost: too many wait to be written", to=self.to)
            self._left_out += 1
            self._left_out_ms = entry.at_ms
            self.lost += 1
            return
        self._append(entry)
        self._some.set()

    def _tell_lost(self) -> None:
        """As soon as there is room: it may be long before the next entry comes."""
        if self._left_out:
            reason = "entries before this one are lost: too many waited to be written"
            at, count = self._left_out_ms, self._left_out
            self._append(Entry(at, "", "", "", "", Decision.LOST, reason, times=count))
            self._left_out = 0

    def _append(self, entry: Entry) -> None:
        self._waiting.append((entry.to_line(self._node), entry.decision))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                if not await self._write_some():
                    await asyncio.sleep(AGAIN_SECONDS)

    async def _write_some(self) -> bool:
        batch, size = Batch([], []), 0
        for line, tag in self._waiting:
            size += len(line)
            if batch.lines and size > AT_ONCE_BYTES:
                break
            batch.lines.append(line)
            batch.tags.append(tag)
        try:
            await self._write(batch)
        finally:
            self.written += 0 if batch.dropped else batch.done
            for _ in range(batch.done):
                self._waiting.popleft()
            if batch.done:
                self._tell_lost()
        return batch.done == len(batch.lines)

    async def drain(self) -> None:
        """Write what waits, as long as that works."""
        while self._waiting and await self._write_some():
            pass


class AuditLog:
    """A part of a node that has a file or a topic for it."""

    def __init__(self, section: AuditSection, node: str, core: Core) -> None:
        """node: its name."""
        self._core = core
        self._node = node
        self.all_calls = section.level == "all"
        self._repeats = Repeats()
        self._threads = DaemonThreads("duolog-audit")  # of its own: its disk may hang
        self._writing = False  # a job of these threads
        self._failure = ""  # why the file cannot be written now
        self.outlets: dict[str, Outlet] = {}
        self._file: AuditFile | None = None
        if section.file is not None:
            self._file = AuditFile(section.file, section.file_bytes_max, section.files_max)
            self.outlets["file"] = Outlet("file", node, self._to_file)
        if section.topic:
            self.outlets["topic"] = Outlet("topic", node, self._to_topic)

    @property
    def wall_ms(self) -> int:
        """Now, for entries."""
        return self._core.times.wall_ms()

    def denied(self, who: Who, method: str, resource: str, error: Exception) -> None:
        """Note a call that was denied."""
        at = self.wall_ms
        self.note(Entry(at, *who, method, resource, Decision.DENIED, str(error)))

    def note(self, entry: Entry) -> None:
        """Write an entry soon; denials that are repeated once in a while."""
        if entry.decision is Decision.DENIED:
            self._put(self._repeats.taken(entry, self._core.times.mono_ms()))
        else:
            self._put([entry])

    def _put(self, entries: list[Entry]) -> None:
        for entry in entries:
            for outlet in self.outlets.values():
                outlet.put(entry)

    # -- in the background ---------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with together() as tasks:
            for outlet in self.outlets.values():
                tasks.create_task(self._run(outlet))
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self._put(self._repeats.due(self._core.times.mono_ms()))

    async def _run(self, outlet: Outlet) -> None:
        if outlet.to == "file":
            await self._to_file(Batch([], []))  # so that a start tells what is wrong with it
        await outlet.run()

    async def close(self) -> None:
        """Write what is left to the file, after `run` has ended, if its disk takes it in time."""
        self._put(self._repeats.rest())
        if self._file is None:
            return
        outlet = self.outlets["file"]
        if not self._writing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await outlet.drain()
        if not self._writing:
            self._file.close()
        if left := len(outlet):
            log.warning(
                "audit entries are lost: the disk of the file did not take them before the stop",
                count=left,
            )

    async def _to_file(self, batch: Batch) -> None:
        file = self._file
        assert file is not None, "it has an outlet"

        def job() -> None:
            try:
                file.open()
                while batch.done < len(batch.lines):
                    batch.done += file.write(batch.lines[batch.done :])
            finally:
                self._writing = False

        self._writing = True
        if await done_in_thread(self._threads, job, self._not_written, END_SECONDS):
            self._is_written()

    def _not_written(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._failure:
            log.warning("cannot write the audit log: trying again", reason=reason)
        self._failure = reason

    def _is_written(self) -> None:
        if self._failure:
            log.info("the audit log is written again")
        self._failure = ""

    async def _to_topic(self, batch: Batch) -> None:
        """Store messages as the master. A slave's entries are in its file alone."""
        core = self._core
        try:
            core.admission.check_master()
        except sdk.NotMaster:
            batch.done, batch.dropped = len(batch.lines), True
            return
        if not core.admission.may_store():
            return
        tags = [encode_properties({"TAGS": tag}).encode() for tag in batch.tags]
        try:
            if not core.metadata.exists(AUDIT_TOPIC):
                core.metadata.make_internal(AUDIT_TOPIC)
            columns = Columns.of(batch.lines, tags)
            now = core.times.wall_ms()
            result = core.log.write_now(PutBatch(AUDIT_TOPIC, QUEUE, columns, now, accepted=True))
        except (sdk.DuologError, StoreError) as error:
            log.debug("audit entries are not stored yet", reason=str(error))
            return
        if result.status is PutMessageStatus.PUT_OK:
            batch.done = len(batch.lines)

    # -- as a part -----------------------------------------------------------------------------

    def status(self) -> Mapping[str, int]:
        """See Part."""
        lost = sum(outlet.lost for outlet in self.outlets.values())
        waiting = max(map(len, self.outlets.values()))
        failing = {"audit_unwritable": 1} if self._failure else {}
        return {"audit_waiting": waiting, "audit_lost": lost, **failing}

    def validate(self) -> str:
        """See Part."""
        return ""

    def role_changed(self) -> None:
        """See Part. What waits is written by the role that the node has then."""
