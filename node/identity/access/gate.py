"""The gate: who a caller is, and whether a user may do what a call asks for.

Rules: without a key file there are no users, and no gate is asked. With one, nobody may do anything
who is not a user. Every answer is by the tables as they are now: a user who was disabled or changed
its password is unknown from the next call on, on open connections as well.
"""

import asyncio
import base64
import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.node.identity.access.accesstokens import PREFIX, AccessTokens
from duolog_server.node.identity.access.lockout import Lockout, Login
from duolog_server.node.identity.access.secrets import Seal, is_password, nobody
from duolog_server.node.identity.access.users import User
from duolog_server.node.identity.rights.decision import Decision, allows_some, decide
from duolog_server.node.identity.rights.policies import NAME_MAX, Acl, BadAcl
from duolog_server.node.identity.rights.resources import Action, Need
from duolog_server.node.net.networks import network_of
from duolog_server.node.runtime.clocks import mono_ms
from duolog_server.store.accesstables import AccessTables

REMEMBERED_MAX = 10_000  # passwords that were right, and decisions
NAMED_MAX = 1000  # characters of a remembered decision: requests may name anything
COMPARED_MAX = 64  # passwords that wait to be compared; each takes some 40 ms of a thread
COMPARED_OF_ONE_MAX = 16  # of them, from one network: others have a turn
BASIC = "basic"
UNKNOWN = "user name or password is wrong, or the user is disabled"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user as it was when it was recognised.

    Attributes:
        source: its address, without the port.
        credentials: the hash of the password or the secret that proved it, as in the user's row;
            empty for a certificate.
        until_ms: when its token ends, wall-clock ms; 0 where it has none.
        via: the address of the console that vouches for the source; empty: it calls itself.
    """

    name: str
    credentials: str
    source: str = ""
    until_ms: int = 0
    via: str = ""


# Whose call runs in this task; None where there is no gate.
PRINCIPAL: ContextVar[Principal | None] = ContextVar("duolog_principal", default=None)
# The address of the viewer for whom the console calls in this task; empty: it calls for itself.
VIEWER_ADDRESS: ContextVar[str] = ContextVar("duolog_viewer_address", default="")


def name_of_caller() -> str:
    """The user whose call runs in this task; empty where there are no users."""
    principal = PRINCIPAL.get()
    return principal.name if principal is not None else ""


def basic(authorization: str) -> tuple[str, str]:
    """User and password of `Basic …`. Raises Unauthenticated."""
    scheme, _, word = authorization.partition(" ")
    if scheme.lower() != BASIC:
        raise sdk.Unauthenticated(
            "this node requires a user and its password, and the call has none"
        )
    try:
        user, colon, password = base64.b64decode(word, validate=True).decode().partition(":")
    except ValueError:  # binascii's and the codecs' errors are some, too
        colon = ""
    if not colon:
        raise sdk.Unauthenticated("the authorization is not NAME:PASSWORD in base64")
    return user, password


def _is_right(password: str, stored: str) -> bool:
    return is_password(password, stored or nobody())


def settled_for(name: str, user: User | None, need: Need) -> Decision | None:
    """What is decided without entries; None: they decide. user: None where it is not enabled."""
    if user is None:
        return Decision(False, None, "", f"denied: there is no enabled user {name!r}")
    if user.is_super:
        return Decision(True, None, "", "allowed: a super user may do everything")
    if not need.actions:
        return Decision(False, None, "", "denied: only super users may do this")
    return None


class Gate:
    """Recognises callers and decides what they may do, for every port of a node.

    Attributes:
        lockout: counts wrong passwords and signatures, and refuses to look at more of them.
        knows: whether this node has the newest users: otherwise a user whom it does not know has
            given nothing wrong.
    """

    def __init__(
        self,
        tables: Callable[[], AccessTables],
        seal: Seal,
        tokens: AccessTokens,
        first: Callable[[str], User | None],
        thread: Executor,
    ) -> None:
        """first: the user of a name that counts while the tables have none. thread: compares
        passwords, one at a time.
        """
        self._tables = tables
        self._seal = seal
        self._tokens = tokens
        self._first = first
        self._thread = thread
        self.lockout = Lockout(mono_ms)
        self.knows: Callable[[], bool] = lambda: True
        self._nobody = os.urandom(32)  # signs for users that are not known
        # Running comparisons, by network, hash of user and password, and stored hash.
        self._compared: dict[tuple[str, bytes, str], asyncio.Future[bool]] = {}
        self._salt = os.urandom(32)
        # By a hash of user and password: the stored hash that they were right for.
        self._right: OrderedDict[bytes, str] = OrderedDict()
        # Those that were wrong for a stored hash: a caller that repeats one learns nothing.
        self._wrong: OrderedDict[tuple[bytes, str], None] = OrderedDict()
        self._seen: tuple[AccessTables | None, int] = (None, 0)
        self._version = 0
        self._users: dict[str, User] = {}
        self._secrets: dict[str, str | None] = {}  # opened
        self._rights: dict[str, Acl | None] = {}
        self._decisions: dict[tuple[str, Need, str], Decision] = {}

    # -- who -----------------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """An enabled user, by the tables as they are now."""
        self._refresh()
        found = self._users.get(name)
        if found is None:
            tables = self._tables()
            if tables.users:
                row = tables.users.get(name)
                found = User.from_row(row) if row is not None else None
                if found is not None:
                    self._users[name] = found
            else:
                return self._first(name)
        return found if found is not None and found.enabled else None

    def _refresh(self) -> None:
        """Forget what was made of older tables."""
        tables = self._tables()
        if self._seen[0] is tables and self._seen[1] == tables.changes:
            return
        self._seen = tables, tables.changes
        self._version += 1
        self._users.clear()
        self._secrets.clear()
        self._rights.clear()
        self._decisions.clear()

    @property
    def version(self) -> int:
        """Grows with each change of users and rights."""
        self._refresh()
        return self._version

    def is_current(self, principal: Principal) -> bool:
        """Whether a caller is still who it was."""
        user = self.user(principal.name)
        if principal.until_ms and self._tokens.wall_ms() >= principal.until_ms:
            return False
        given = principal.credentials
        return user is not None and (not given or given in (user.credentials, user.secret))

    def check_current(self, principal: Principal) -> None:
        """Raise Unauthenticated if a caller is no longer who it was."""
        if not self.is_current(principal):
            raise sdk.Unauthenticated(
                f"user {principal.name} was disabled, deleted, or has another password now, or "
                "its token has expired"
            )

    async def by_password(self, authorization: str, source: str, connection: str = "") -> Principal:
        """Who calls with `Basic …`, with a password or a token in its place.

        connection: see Login. Raises Unauthenticated, Throttled if too many were wrong, and Busy if
        too many passwords are being compared.
        """
        name, password = basic(authorization)
        login = Login(name, source, connection)
        user = self.user(name)
        if password.startswith(PREFIX):
            return self._by_token(name, user, password, source)
        while True:
            stored = user.password if user is not None else ""
            mark = hmac.digest(self._salt, f"{name}:{password}".encode(), hashlib.sha256)
            unknown = user is None and not self.knows()
            if (mark, stored) not in self._wrong and not unknown:
                if user is not None and self._right.get(mark) == stored:
                    self.lockout.check(login)
                    self.lockout.proved(login)
                    break
                right = await self._compare(login, mark, stored, password)
                if right and user is not None:
                    self._remember(mark, stored)
                    break
            # Refused is what is wrong by the tables of now: this node may have become the master
            # meanwhile, and its caller is not told to ask another one then.
            before, user = stored, self.user(name)
            if before == (user.password if user is not None else ""):
                raise sdk.Unauthenticated(f"user {name!r}: {UNKNOWN}")
        return Principal(name, user.credentials, source)

    def _by_token(self, name: str, user: User | None, token: str, source: str) -> Principal:
        until_ms = self._tokens.until_ms(user, token) if user is not None else None
        if user is None or until_ms is None:
            raise sdk.Unauthenticated(
                f"user {name!r}: the token is wrong or has expired, or the user is disabled or has "
                "another password now"
            )
        return Principal(name, user.credentials, source, until_ms)

    def _remember(self, mark: bytes, stored: str) -> None:
        self._right[mark] = stored
        self._right.move_to_end(mark)
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)

    async def _compare(self, login: Login, mark: bytes, stored: str, password: str) -> bool:
        """Whether that is the password of a stored hash: compared once for all who ask at the same
        time, as when many programs of one network begin. It continues where they leave.
        """
        network = network_of(login.address)
        key = network, mark, stored
        running = self._compared.get(key)
        if running is None:
            self.lockout.check(login)
            of_one = sum(other == network for other, _, _ in self._compared)
            if len(self._compared) >= COMPARED_MAX or of_one >= COMPARED_OF_ONE_MAX:
                raise sdk.Busy("too many callers give their passwords at the same time: try again")
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, _is_right, password, stored)
            self._compared[key] = running
            self.lockout.begins(login)

            def done(found: asyncio.Future[bool]) -> None:
                del self._compared[key]
                failed = not found.cancelled() and found.exception() is None and not found.result()
                self.lockout.ended(login, is_right=not failed)
                if failed:
                    self._wrong[mark, stored] = None
                    if len(self._wrong) > REMEMBERED_MAX:
                        self._wrong.popitem(last=False)

            running.add_done_callback(done)
        return await asyncio.shield(running)

    def secret(self, name: str) -> str | None:
        """What an enabled user signs with; None where it does not sign. Not to be shown."""
        user = self.user(name)
        if user is None or not user.secret:
            return None
        if name not in self._secrets:
            self._secrets[name] = self._seal.open(name, user.secret)
        return self._secrets[name]

    def signed(self, login: Login, is_by: Callable[[bytes], bool]) -> Principal:
        """Who signed. is_by: whether the holder of a secret did; takes as long for each.

        Raises Unauthenticated, and Throttled if too many signatures were wrong.
        """
        secret = self.secret(login.user)
        key = self._nobody if secret is None else secret.encode()
        unknown = secret is None and not self.knows()
        if unknown or not self.lockout.guarded(login, lambda: is_by(key) and secret is not None):
            raise sdk.Unauthenticated(
                f"user {login.user[:NAME_MAX]!r}: {UNKNOWN}, or does not sign"
            )
        return self.by_signature(login.user, login.address)

    def by_signature(self, name: str, source: str) -> Principal:
        """A user that was found to have signed with its secret. Raises Unauthenticated."""
        user = self.user(name)
        if user is None or not user.secret:
            raise sdk.Unauthenticated(f"user {name!r}: {UNKNOWN}, or does not sign")
        return Principal(name, user.secret, source)

    def by_certificate(self, name: str, source: str) -> Principal:
        """A user that a client's certificate names. Raises Unauthenticated."""
        if self.user(name) is None:
            raise sdk.Unauthenticated(f"user {name!r}, of the certificate: {UNKNOWN}")
        return Principal(name, "", source)

    # -- what ----------------------------------------------------------------------------------

    def is_super(self, principal: Principal) -> bool:
        """Whether a caller may do everything."""
        user = self.user(principal.name)
        return user is not None and user.is_super

    def decision(self, name: str, need: Need, source: str) -> Decision:
        """Whether a user may do something, and which entry decides."""
        self._refresh()
        key = name, need, source
        found = self._decisions.get(key)
        if found is None:
            found = self._decide(name, need, source)
            if len(need.resource.name) + len(source) > NAMED_MAX:
                return found
            if len(self._decisions) >= REMEMBERED_MAX:
                self._decisions.clear()
            self._decisions[key] = found
        return found

    def _decide(self, name: str, need: Need, source: str) -> Decision:
        settled = settled_for(name, self.user(name), need)
        return settled if settled is not None else decide(self._acl(name), need, source)

    def _acl(self, name: str) -> Acl | None:
        """A user's entries."""
        if name not in self._rights:
            self._rights[name] = self._rights_of(name)
        return self._rights[name]

    def _rights_of(self, name: str) -> Acl | None:
        row = self._tables().rights.get(name)
        try:
            return Acl.from_json(row) if row is not None else None
        except BadAcl:
            return None  # written by a newer version: it gives no rights here

    def allows(self, principal: Principal, needs: Iterable[Need]) -> bool:
        """Whether a caller, who was found to be current, may do all of it."""
        return self._denial(principal, needs) is None

    def check(self, principal: Principal, needs: Iterable[Need]) -> None:
        """Raise Unauthenticated or NoPermission unless a caller may do all of it."""
        self.check_current(principal)
        denial = self._denial(principal, needs)
        if denial is not None:
            raise sdk.NoPermission(f"user {principal.name}: {denial.reason}")

    def why_denied(self, principal: Principal, need: Need) -> str:
        """Why a caller could not do something; empty: it could. Without a name: of any resource."""
        if need.resource.name or not need.actions:
            denial = self._denial(principal, [need])
            return "" if denial is None else denial.reason
        if self.is_super(principal) or allows_some(self._acl(principal.name), need):
            return ""
        actions = ",".join(action for action in Action if action in need.actions)
        return f"denied: no entry allows {actions} on any {need.resource.kind}"

    def _denial(self, principal: Principal, needs: Iterable[Need]) -> Decision | None:
        """The first thing that a caller may not do: from its address, or through its console."""
        sources = [principal.source, *([principal.via] if principal.via else ())]
        found = (
            self.decision(principal.name, need, source) for need in needs for source in sources
        )
        return next((decision for decision in found if not decision.allowed), None)
