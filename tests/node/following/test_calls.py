"""Calls to a broker that is followed."""

from pathlib import Path

import pytest

from node.following.broker import calls
from node.following.broker.calls import OldBroker
from node.remoting.calling import CallRefused
from node.remoting.codec.codes import RequestCode
from node.remoting.codec.command import Command
from tests.node.following.master import HandMaster, serving, written


class Beginning(HandMaster):
    """Refuses to tell of itself some times, as a broker does in its first second."""

    refusals = 0

    def answer(self, request: Command) -> Command:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self.refusals += 1
            if self.refusals < 3:
                return request.answer(1, "java.util.NoSuchElementException")
        return super().answer(request)


async def test_a_broker_that_has_just_begun_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "AGAIN_SECONDS", 0.001)
    log = written(tmp_path, 3)
    async with serving(Beginning(log)) as master:
        broker = OldBroker(master.address)
        assert (await broker.runtime()).end == len(log)
        broker.close()


async def test_a_broker_that_goes_on_refusing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(calls, "BEGINNING_SECONDS", 0.02)
    async with serving(HandMaster(written(tmp_path, 3))) as master:
        master.refused = {RequestCode.GET_BROKER_RUNTIME_INFO}
        broker = OldBroker(master.address)
        with pytest.raises(CallRefused, match="not today"):
            await broker.runtime()
        broker.close()
