"""`with` and `async with` of what a test starts."""

import asyncio
from types import TracebackType
from typing import Self


class Lifetime:
    """What is started by `with` or `async with`, and closed however the block ends."""

    def start(self) -> None:
        """Start."""
        raise NotImplementedError

    def close(self) -> None:
        """Close, also what was started in part; waits for a start that runs in another thread."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Start, in a thread."""
        try:
            await asyncio.to_thread(self.start)
        except BaseException:
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, in a thread."""
        await asyncio.to_thread(self.close)
