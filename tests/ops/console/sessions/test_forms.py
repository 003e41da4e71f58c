"""What a form asks for is done once, however often it comes."""

import asyncio
from collections.abc import Callable

import duolog
import pytest

from duolog_server.ops.console.sessions.forms import (
    COMMAND_CHARACTERS,
    FORM_SECONDS,
    FORMS_MAX,
    FormIsOver,
    Forms,
    Told,
)
from duolog_server.ops.console.view.visits import Done
from tests.node.replicas import WAIT_SECONDS


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Counts how often it is done. wrong: what it raises."""

    def __init__(self, wrong: Exception | None = None) -> None:
        self.wrong = wrong
        self.done = 0
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def __call__(self) -> Told:
        self.done += 1
        await self.proceed.wait()
        if self.wrong is not None:
            raise self.wrong
        return Told(Done(f"Done {self.done}.", "/there"), "undo")


async def test_a_form_that_comes_again_gets_the_first_result_or_may_not_come() -> None:
    forms, work = Forms(Clock()), Work()
    name = forms.show()
    first = await forms.once(name, work)
    assert (first.done.told, first.done.location, first.undo) == ("Done 1.", "/there", "undo")
    for _ in range(2):
        again = await forms.once(name, work)
        assert again.done.told.startswith("This form was sent before")
        assert again.done.told.endswith(" Done 1.")
        assert (again.done.location, again.undo) == ("/there", "undo")
    assert work.done == 1
    assert (await forms.once(forms.show(), work)).done.told == "Done 2."
    forms, work = Forms(Clock()), Work(duolog.ResultUnknown("it may have been stored"))
    name = forms.show()
    with pytest.raises(duolog.ResultUnknown):
        await forms.once(name, work)
    work.wrong = None
    with pytest.raises(FormIsOver, match="it may have been stored"):
        await forms.once(name, work)
    assert work.done == 1
    forms = Forms(Clock())
    name = forms.show()

    async def long() -> Told:
        return Told(Done("Done.", "/", command="x" * (COMMAND_CHARACTERS + 1)))

    assert (await forms.once(name, long)).done.command
    assert (await forms.once(name, long)).done.command == ""


@pytest.mark.parametrize("wrong", [None, duolog.ResultUnknown("who knows"), duolog.Busy("later")])
async def test_forms_that_come_together_get_one_result(wrong: Exception | None) -> None:
    forms, work = Forms(Clock()), Work(wrong)
    work.proceed.clear()
    name = forms.show()
    async with asyncio.timeout(WAIT_SECONDS):
        coming = [asyncio.create_task(forms.once(name, work)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        work.proceed.set()
        found = await asyncio.gather(*coming, return_exceptions=True)
    assert work.done == 1
    assert [repr(one) for one in found] == [repr(found[0])] * 3
    assert isinstance(found[0], Told if wrong is None else type(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        duolog.BadRequest("not so"),
        duolog.NoPermission("not you"),
        duolog.Unavailable("nobody leads"),
        duolog.Timeout("did not go out"),
    ],
)
async def test_a_form_of_which_nothing_was_done_may_come_again(wrong: Exception) -> None:
    forms, work = Forms(Clock()), Work(wrong)
    name = forms.show()
    with pytest.raises(type(wrong)):
        await forms.once(name, work)
    work.wrong = None
    assert (await forms.once(name, work)).done.told == "Done 2."


async def test_a_form_that_was_broken_off_may_not_come_again_and_who_waits_breaks_nothing() -> None:
    forms, work = Forms(Clock()), Work()
    work.proceed.clear()
    name = forms.show()
    coming, other = (asyncio.create_task(forms.once(name, work)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    coming.cancel()
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(duolog.ResultUnknown):
            await other
    with pytest.raises(FormIsOver):
        await forms.once(name, work)
    assert work.done == 1
    forms, work = Forms(Clock()), Work()
    work.proceed.clear()
    name = forms.show()
    coming, other = (asyncio.create_task(forms.once(name, work)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    other.cancel()
    await asyncio.wait([other])
    work.proceed.set()
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await coming).done.told == "Done 1."


def too_old(forms: Forms, clock: Clock) -> None:
    clock.now += FORM_SECONDS + 1


def too_many(forms: Forms, clock: Clock) -> None:
    for _ in range(FORMS_MAX):
        forms.show()


@pytest.mark.parametrize("pass_by", [too_old, too_many])
@pytest.mark.parametrize("sent", [False, True])
async def test_a_form_that_is_no_longer_known_does_nothing(
    pass_by: Callable[[Forms, Clock], None], sent: bool
) -> None:
    clock, work = Clock(), Work()
    forms = Forms(clock)
    name = forms.show()
    if sent:
        await forms.once(name, work)
    pass_by(forms, clock)
    with pytest.raises(FormIsOver, match="open the page again"):
        await forms.once(name, work)
    assert work.done == sent


@pytest.mark.parametrize("name", ["", "x", "ü"])
async def test_a_form_that_nobody_was_shown_does_nothing(name: str) -> None:
    forms, work = Forms(Clock()), Work()
    forms.show()
    with pytest.raises(FormIsOver):
        await forms.once(name, work)
    assert not work.done
