"""Searches are stopped, and made again."""

from collections.abc import Mapping

from duolog_server.ops.console.actions.asking import Question
from duolog_server.ops.console.view.addresses import MESSAGES, search_of
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit


async def _ask_stop(visit: Visit) -> Shown:
    return Question("Stop the search", "What it has found is kept.", "Stop").shown()


async def _stop(visit: Visit, form: Mapping[str, str]) -> Done:
    await visit.searches.stop(search_of(visit.query))
    return Done("The search was stopped.", f"{MESSAGES}?{search_of(visit.query)}")


async def _ask_again(visit: Visit) -> Shown:
    return Question("Search again", "What it has found is forgotten.", "Search again").shown()


async def _again(visit: Visit, form: Mapping[str, str]) -> Done:
    await visit.searches.forget(search_of(visit.query))
    return Done("The search began again.", f"{MESSAGES}?{search_of(visit.query)}")


STOP = Action(_ask_stop, _stop, repeatable=True)
AGAIN = Action(_ask_again, _again, repeatable=True)
