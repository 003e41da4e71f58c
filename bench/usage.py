"""CPU time that a process takes, from the scheduler's own account (ns, all its threads)."""

import os
from pathlib import Path


class CpuOf:
    """CPU seconds of a process since this object was made. pid: None for this process."""

    def __init__(self, pid: int | None) -> None:
        self._tasks = Path(f"/proc/{pid or os.getpid()}/task")
        self._began = self._threads()

    def _threads(self) -> dict[str, tuple[str, int]]:
        """Name and ns of each thread; one that ended while it was looked at is left out."""
        found = {}
        for task in self._tasks.iterdir():
            try:
                name = (task / "comm").read_text().strip()
                found[task.name] = (name, int((task / "schedstat").read_text().split()[0]))
            except FileNotFoundError:
                continue
        return found

    def by_thread(self) -> dict[str, float]:
        """Seconds since the beginning, by the threads' names."""
        found: dict[str, float] = {}
        for number, (name, ns) in self._threads().items():
            _, before = self._began.get(number, ("", 0))
            found[name] = found.get(name, 0.0) + (ns - before) / 1e9
        return found

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return sum(self.by_thread().values())
