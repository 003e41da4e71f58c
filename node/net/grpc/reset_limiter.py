"""How soon a next call of a method is taken, where clients reset calls as soon as they begin.

Whoever takes a call at once pays for all of it, though its reset comes right behind it. A call
that waits for a ms or two has been reset by then, and gRPC's core forgets it at next to no cost.
No IO, no clock.
"""

from dataclasses import dataclass, field

from duolog_server.store.clocks import MonoMs

QUICK_MS = 100  # from the beginning of a call to its reset: sooner than any deadline of use
RESETS_MAX = 100  # quick ones of a method, in a period
RESETS_PART = 0.125  # of its calls: fewer cost less than the pause would cost the others
PERIOD_MS = 1000
PAUSE_SECONDS = 0.002  # between calls of a method, while there are more


@dataclass(slots=True)
class _Method:
    since_ms: MonoMs
    calls: int = 0
    resets: int = 0
    were_many: bool = False  # in the period before

    @property
    def has_many(self) -> bool:
        return self.resets > RESETS_MAX and self.resets >= RESETS_PART * self.calls


@dataclass(slots=True)
class Resets:
    """Those of late, by method; as many methods as a server has."""

    _methods: dict[str, _Method] = field(default_factory=dict)

    def note(self, method: str, lasted_ms: int, now_ms: MonoMs) -> None:
        """A call was given up by its client, so long after it was taken."""
        if lasted_ms <= QUICK_MS:
            self._now(method, now_ms).resets += 1

    def pause_seconds(self, method: str, now_ms: MonoMs) -> float:
        """A call of a method was taken; how long to wait before the next one is. All methods of
        which calls are reset have together what one may have.
        """
        self._now(method, now_ms).calls += 1
        if not self._are_many(method, now_ms):
            return 0.0
        attacked = sum(self._are_many(name, now_ms) for name in list(self._methods))
        return attacked * PAUSE_SECONDS

    def _are_many(self, method: str, now_ms: MonoMs) -> bool:
        found = self._now(method, now_ms)
        return found.were_many or found.has_many

    def _now(self, method: str, now_ms: MonoMs) -> _Method:
        """The period of now, of a method."""
        found = self._methods.setdefault(method, _Method(now_ms))
        gone = (now_ms - found.since_ms) // PERIOD_MS
        if gone:
            found.were_many = gone == 1 and found.has_many
            found.since_ms = MonoMs(found.since_ms + gone * PERIOD_MS)
            found.calls = found.resets = 0
        return found


__all__ = ["Resets"]
