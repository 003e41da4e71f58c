"""python -m sim.crossmodel: explores how a consumer group crosses the seams of a queue that moved.

A name of three spans with a message each, or none: there, and back again. The group reads wherever
it is let in, and commits what it was given; the places tell each other of crossings, and resets go
back to any offset, two of them at once. A report may arrive late, again or never, and its answer
may be lost; masters die in a reset. The rules are those of `store/crossing.py`.

M7: no offset is given before every earlier span was committed to its end, and none is skipped.
M8: from every state, a fair run without faults gives and commits everything.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from duolog_server.store import crossing
from duolog_server.store.crossing import Close, Crossed, Progress
from sim.bounded import Outcome, explored

FIRSTS = (0, 1, 2)
ENDS = (1, 2, 3)
T = TypeVar("T")


class Readers(NamedTuple):
    """A state. given: the next offset that members are given at each place, -1: they begin anew.

    read: the offsets that were given since the last reset to before them. sent: to a place, what
    it was ever told. closed: what the reset at each place has closed.
    """

    here: tuple[Progress, ...] = (Progress(), Progress(), Progress())
    given: tuple[int, ...] = (-1, -1, -1)
    read: tuple[int, ...] = ()
    sent: tuple[tuple[int, int, int], ...] = ()  # to, offset or -1 to close, resets
    closed: tuple[tuple[int, ...], ...] = ((), (), ())
    resets: int = 2
    lost: int = 2
    wrong: str = ""


BOUNDS = Readers()


def _put(row: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*row[:at], value, *row[at + 1 :])


class Crossings:
    """The successors of a state."""

    def successors(self, state: Readers) -> Iterator[tuple[str, Readers]]:
        """Every event that may be the next one, and the state after it."""
        yield from self.fair(state)
        for to, offset, resets in state.sent:
            yield (
                f"{to} hears ({offset}, {resets}) once more",
                self._hear(state, to, offset, resets),
            )
        for span in range(3):
            progress = state.here[span]
            for offset in range(FIRSTS[span], ENDS[span] + (span == 2)) if state.resets else ():
                begun = crossing.go_back(progress, offset, span > 0)
                if begun is not None:
                    after = self._set(state, span, begun)._replace(
                        resets=state.resets - 1, closed=_put(state.closed, span, ())
                    )
                    yield f"a reset to {offset} begins", after
            if progress.going_back is not None and state.closed[span]:
                yield (
                    f"{span} has a new master",
                    state._replace(closed=_put(state.closed, span, ())),
                )
            if state.lost:
                yield from self._unanswered(state, span)

    def _unanswered(self, state: Readers, span: int) -> Iterator[tuple[str, Readers]]:
        told = crossing.to_tell(state.here[span], ENDS[span]) if span < 2 else None
        if told is not None:
            after = self._send(state, span + 1, told.offset, told.resets)
            after = after._replace(lost=state.lost - 1)
            yield f"{span} tells {told}, which is late", self._told(after, span, told)
            heard = self._hear(after, span + 1, told.offset, told.resets)
            yield f"{span} tells {told}, unanswered", self._told(heard, span, told)

    def _told(self, state: Readers, span: int, told: Crossed) -> Readers:
        """What a place remembers of what it told without an answer: nothing."""
        return state

    def fair(self, state: Readers) -> Iterator[tuple[str, Readers]]:
        """Those of them that no fault is needed for."""
        if state.wrong:
            return
        for span in range(3):
            progress = state.here[span]
            if progress.going_back is not None:
                yield from self._reset(state, span)
            if crossing.may_read(progress, span > 0):
                yield from self._read(state, span)
            told = crossing.to_tell(progress, ENDS[span]) if span < 2 else None
            if told is not None:
                after = self._send(state, span + 1, told.offset, told.resets)
                after = self._hear(after, span + 1, told.offset, told.resets)
                after = self._set(after, span, crossing.on_answer(after.here[span], told))
                yield f"{span} tells {told}", after

    def _read(self, state: Readers, span: int) -> Iterator[tuple[str, Readers]]:
        progress, given = state.here[span], state.given[span]
        begins = FIRSTS[span] if progress.committed is None else progress.committed
        offset = begins if given < 0 else given
        if offset < ENDS[span]:
            wrong = ""
            for before in range(span):
                committed = state.here[before].committed
                if committed is None or committed < ENDS[before]:
                    wrong = f"M7: {offset} is given, and {committed} of {ENDS[before]} committed"
            if set(range(offset)) - set(state.read):
                wrong = wrong or f"M7: {offset} is given, and of those before {state.read}"
            yield (
                f"{offset} is given",
                state._replace(
                    given=_put(state.given, span, offset + 1),
                    read=tuple(sorted({*state.read, offset})),
                    wrong=wrong,
                ),
            )
        elif progress.committed is None:
            yield (
                f"{offset} is committed: nothing is there",
                self._set(state, span, replace(progress, committed=offset)),
            )
        if given > begins:
            yield (
                f"{given} is committed",
                self._set(state, span, replace(progress, committed=given)),
            )

    def _reset(self, state: Readers, span: int) -> Iterator[tuple[str, Readers]]:
        progress = state.here[span]
        assert progress.going_back is not None
        for later in crossing.to_close(FIRSTS, progress.going_back):
            if later in state.closed[span]:
                continue
            after = self._send(state, later, -1, progress.resets)
            after = self._hear(after, later, -1, progress.resets)
            found, closed = crossing.on_closed(progress, after.here[later])
            after = self._set(after, span, found)
            done = (*after.closed[span], later) if closed else ()
            yield f"{later} is closed", after._replace(closed=_put(after.closed, span, done))
            if state.lost:
                lost = self._send(state, later, -1, progress.resets)
                yield f"a call to close {later} is late", lost._replace(lost=state.lost - 1)
            return
        offset = progress.going_back
        yield (
            f"the reset to {offset} is done",
            self._set(state, span, crossing.gone_back(progress))._replace(
                given=(-1, -1, -1), read=tuple(range(offset)), closed=_put(state.closed, span, ())
            ),
        )

    @staticmethod
    def _set(state: Readers, span: int, progress: Progress) -> Readers:
        here = _put(state.here, span, progress)
        given = state.given
        if progress.committed is None or progress.resets != state.here[span].resets:
            given = _put(given, span, -1)
        return state._replace(here=here, given=given)

    @staticmethod
    def _send(state: Readers, to: int, offset: int, resets: int) -> Readers:
        sent = tuple(sorted({*state.sent, (to, offset, resets)}))
        return state._replace(sent=sent)

    def _hear(self, state: Readers, to: int, offset: int, resets: int) -> Readers:
        progress = state.here[to]
        if offset < 0:
            return self._set(state, to, crossing.on_close(progress, Close(resets)))
        return self._set(state, to, crossing.on_crossed(progress, Crossed(offset, resets)))

    @staticmethod
    def calmed(state: Readers) -> Readers:
        """After the last fault."""
        return state._replace(lost=0)

    @staticmethod
    def broken(state: Readers) -> str:
        """What is wrong with a state."""
        return state.wrong

    @staticmethod
    def broken_end(state: Readers) -> str:
        """What is wrong with a state in which nothing happens any more."""
        unread = set(range(ENDS[-1])) - set(state.read)
        if state.wrong or (not unread and state.here[-1].committed == ENDS[-1]):
            return ""  # what is wrong is a state of its own
        return f"M8: {sorted(unread)} cannot be read: {state.here}"


def explore(bounds: Readers = BOUNDS) -> Outcome:
    """Visit the states."""
    return explored(Crossings(), bounds)


def main() -> int:
    """Explore; the status is 1 where an invariant does not hold."""
    outcome = explore()
    print(
        f"{outcome.states} states", outcome.violation or "no violation", *outcome.trace, sep="\n  "
    )
    return bool(outcome.violation)


if __name__ == "__main__":
    sys.exit(main())
