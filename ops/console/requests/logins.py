"""Users log in and out, and how often somebody may try to.

Rules: the nodes decide whether a password is right, and lock users out as those of all protocols.
Before them, an address may fail a few times here, for whichever users, then once in a while. A
login that does not fail gives back its own try alone, so that who may log in cannot try the
passwords of others either. Nobody logs in where the nodes have no users: any name would do.
"""

import asyncio

from duolog import BadRequest, Client, DuologError, NoPermission, Timeout, Unauthenticated
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from duolog_server.node.identity.access.lockout import Lockout, Login
from duolog_server.ops.console.http.security import address_of, fields_of
from duolog_server.ops.console.requests.answers import html, refusal, status_of
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.addresses import LOGIN, own_path
from duolog_server.ops.console.view.formatting import duration, sentence
from duolog_server.ops.console.view.visits import FORM_BYTES, Shown
from duolog_server.store.clocks import MonoMs

LOGIN_SECONDS = 30.0  # in which nodes answer, also where others log in first
LOGINS_MAX = 8  # at a time; a node lets 16 of one address, the console's, wait
NO_USERS = (
    "The nodes have no users, so no user can log in: serve the console on loopback, or set the "
    "nodes' access.key_file"
)


class Logins:
    """The pages of it."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self._lockout = Lockout(lambda: MonoMs(int(1000 * viewers.seconds())))
        self._asking = asyncio.Semaphore(LOGINS_MAX)

    async def page(self, request: Request) -> Response:
        """The form; where its user is logged in already, the page that was asked for."""
        wanted = own_path(request.query_params.get("next", ""))
        if "next" in request.query_params and self._viewers.logged_in(request) is not None:
            return RedirectResponse(wanted, 303)
        return await self._form(request, "", wanted)

    async def log_in(self, request: Request) -> Response:
        """Begin a session, and redirect to the page that was asked for."""
        proxied = bool(self._viewers.settings.origins)
        address = address_of(request, proxied=proxied)
        fields = await fields_of(request, FORM_BYTES)
        wanted = own_path(fields.get("next", ""))
        login = Login("", address)
        wait = self._lockout.left_ms(login)
        if wait:
            told = f"Too many logins failed. Try again in {duration(wait)}."
            return await self._form(request, told, wanted, 429)
        user, password = fields.get("user", ""), fields.get("password", "")
        if not user or not password:
            return await self._form(request, "Enter a user and a password.", wanted, 400)
        self._lockout.begins(login)
        try:
            cookie = await self._begin(user, password)
        except Unauthenticated:
            self._lockout.ended(login, is_right=False)
            return await self._form(request, "User or password is wrong.", wanted, 401)
        except DuologError as error:
            self._lockout.ended(login, is_right=True)
            return await self._form(request, sentence(str(error)), wanted, status_of(error))
        self._lockout.ended(login, is_right=True)
        await self._viewers.end(request)
        response = RedirectResponse(wanted, 303)
        self._viewers.give(response, cookie)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        session = self._viewers.logged_in(request)
        fields = await fields_of(request, FORM_BYTES)
        if session is not None and not session.proves(fields.get("form", "")):
            shown = refusal("Not logged out", "This form is of another session.")
            return await html(shown, request, session, 403)
        await self._viewers.end(request)
        response = RedirectResponse(LOGIN, 303)
        self._viewers.take(response)
        return response

    async def _form(self, request: Request, wrong: str, wanted: str, status: int = 200) -> Response:
        settings = self._viewers.settings
        facts = {
            "sentence": wrong or "Log in as a user of the nodes.",
            "alarm": bool(wrong),
            "next": wanted,
            "plain": not (settings.secured or settings.loopback),
        }
        return await html(Shown("login.html", "Log in", facts), request, None, status)

    async def _begin(self, user: str, password: str) -> str:
        """A new session's cookie. Raises Unauthenticated where the password is wrong."""
        client = self._viewers.client_of(user, password)
        try:
            async with asyncio.timeout(LOGIN_SECONDS), self._asking:
                if await self._without_users():
                    raise BadRequest(NO_USERS)
                await _prove(client)
                generation = (await client.access.who_am_i()).generation
            return await self._viewers.sessions.add(user, client, generation)
        except DuologError:  # its Timeout is a TimeoutError
            await client.close()
            raise
        except TimeoutError:
            await client.close()
            told = "the nodes do not answer, or too many users log in at once: try again"
            raise Timeout(told) from None
        except BaseException:
            await client.close()
            raise

    async def _without_users(self) -> bool:
        """Whether the nodes let anybody in."""
        async with self._viewers.client_of("", "") as nobody:
            try:
                await nobody.admin.route()
            except Unauthenticated:
                return False
        return True


async def _prove(client: Client) -> None:
    """Have the nodes authenticate a client. Raises Unauthenticated."""
    try:
        await client.admin.route()
    except NoPermission:
        pass  # a user, who may not see this
