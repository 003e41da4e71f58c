"""Flushes of the consume queues: which of them are synced, and the note of their ends.

Rules: a note is made before the sync that it covers and written after it; a note that a cut has
outdated is written again; a step never blocks, the sync itself is a job for a thread.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.disk import Disk
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.queuenote import Note
from duolog_server.store.queues import QUEUES_AT_ONCE, ConsumeQueues


@dataclass(frozen=True, slots=True)
class Derived:
    """How far queues and index follow the log: an offset, the index's newest record, a time."""

    position: int
    indexed_up_to: int
    store_time: int


class QueueFlushes:
    """One flush at a time. derived: asked whenever something is noted."""

    def __init__(self, disk: Disk, queues: ConsumeQueues, derived: Callable[[], Derived]) -> None:
        self._disk = disk
        self._queues = queues
        self._derived = derived
        self._pending_note: Note | None = None  # of the queues' ends, while it is written
        self._flushing: list[ConsumeQueue] = []

    def job(self, least_pages: int) -> Generator[None, None, FlushJob | None]:
        """Sync all queues that are worth it, and the directories that got new names.

        least_pages: 0 syncs everything, which is noted then. A few queues at each step: the store
        may be put to between them, but nothing cut or removed. None: there is nothing to do.
        """
        queues, derived = self._queues, self._derived()
        if self._pending_note is not None:  # its success was never noted: a stop was faster
            queues.changed.update(self._pending_note.ends)
            self._pending_note = None
        note = None
        if least_pages == 0 and queues.changed:
            note = queues.ends.begin(derived.position, derived.indexed_up_to)
            self._pending_note = note
            yield from queues.fill(note)
        # After the note: everything it covers is included.
        self._flushing = queues.to_flush(least_pages == 0)
        rows = [q.files for q in self._flushing] + [ext.files for ext in queues.ext.values()]
        jobs = []
        for queue in self._flushing:
            queue.let_go()
        for number, files in enumerate(rows, 1):
            job = files.flush_job(least_pages)
            if job is not None:
                jobs.append(job)
            if number % QUEUES_AT_ONCE == 0:
                yield
        directories = queues.directories_to_sync()
        merged = FlushJob.of(self._disk, jobs, directories, derived.store_time)
        if not (merged.files or merged.directories or note is not None):
            return None
        if note is not None:
            merged.then = note.write
        return merged

    def done(self, job: FlushJob) -> None:
        """Note the success of a job."""
        job.done()
        self._queues.flushed(self._flushing)
        written, self._pending_note = self._pending_note, None
        if written is not None:
            self._queues.noted_now(written)
            if written.overtaken:  # it covered entries that were cut while it was written
                self._queues.sync_touched()
                self.note()

    def note_all(self) -> None:
        """After recovery: note all queues, once they are synced."""
        self._queues.note_all()
        self._queues.sync()
        self.note()

    def note(self, up_to: int | None = None) -> None:
        """Note changed queues. Their entries must be synced, and no other note may be in progress.

        up_to: how far the queues follow the log, if they were cut.
        """
        derived = self._derived()
        position = derived.position if up_to is None else up_to
        note = self._queues.ends.begin(position, derived.indexed_up_to)
        at_once(self._queues.fill(note))
        note.write()
        self._queues.noted_now(note)


# Work in small steps, between which the owner of the store may do other work.
T = TypeVar("T")


def at_once(work: Generator[None, None, T]) -> T:
    """Run all steps now; the result of the work."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
