"""Pages as HTML, and as streams of what has changed."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable

from duolog import DuologError, Unauthenticated
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from duolog_server.ops.console.view import addresses, links
from duolog_server.ops.console.view import formatting as words
from duolog_server.ops.console.view.visits import Shown
from duolog_server.ops.inspection.doctor.findings import by_cause

LIVE_SECONDS = 1.0  # between two looks
STREAM_SECONDS = 600.0  # then the browser asks for the next stream
BEAT_SECONDS = 15.0  # without a change, until a sign of life
BODY = "content"  # the block of a page that changes
LAST = "event: last\ndata:\n\n"  # the page changes no more: the browser follows it no more
OVER = "event: over\ndata:\n\n"  # the session is: the browser asks for the page, to log in
Look = Callable[[], Awaitable[Shown]]


@functools.cache
def environment() -> Environment:
    """The templates; all that they show is escaped."""
    made = Environment(
        loader=PackageLoader("duolog_server.ops.console"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(address=addresses.address, page=addresses)
    made.globals.update(link=links.link, may=links.may, menu=links.menu, named=links.named)
    made.filters.update(
        by_cause=by_cause,
        counted=words.counted,
        duration=words.duration,
        moment=words.moment,
        number=words.number,
        pause=words.pause,
        percent=words.percent,
        rate=words.rate,
        size=words.size,
        told_apart=words.told_apart,
        visible=words.visible,
    )
    return made


def whole(shown: Shown, around: dict[str, object]) -> str:
    """A page. around: what the frame of all pages shows."""
    template = environment().get_template(shown.template)
    return template.render(**around, **_facts(shown))


def body(shown: Shown, rights: links.Rights | None = None) -> str:
    """The part of a page that changes. rights: of its viewer; None: all links are shown."""
    template = environment().get_template(shown.template)
    context = template.new_context({"rights": rights, **_facts(shown)})
    return "".join(template.blocks[BODY](context))


def _facts(shown: Shown) -> dict[str, object]:
    return {"title": shown.title, "command": shown.command, "alarm": False, **shown.facts}


async def live(
    look: Look,
    failed: Callable[[DuologError], Shown],
    lasts: Callable[[], bool] = lambda: True,
    rights: links.Rights | None = None,
) -> AsyncGenerator[str, None]:
    """Server-sent events: the body of a page whenever it has changed. failed: shows an error.

    lasts: whether the session of the page does; nothing is shown once it does not. rights: of its
    viewer; None: all links are shown.
    """
    loop = asyncio.get_running_loop()
    end, told, last = loop.time() + STREAM_SECONDS, loop.time(), ""
    while (now := loop.time()) < end:
        if not lasts():
            yield OVER
            return
        asks = True
        try:
            shown = await look()
        except Unauthenticated:
            yield OVER
            return
        except DuologError as error:
            shown, asks = failed(error), False
        draw = functools.partial(body, shown, rights)
        html = draw() if rights is None else await rights.drawn(draw, asks=asks)
        if not lasts():
            continue
        if html != last:
            yield "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"
            last, told = html, loop.time()
        if shown.over:
            yield LAST
            return
        if loop.time() >= told + BEAT_SECONDS:
            yield ":\n\n"
            told = loop.time()
        pause = LIVE_SECONDS if shown.pause_seconds is None else shown.pause_seconds
        await asyncio.sleep(max(0.0, pause - (loop.time() - now)))
