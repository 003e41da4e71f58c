"""The Access service: users and their rights."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address

import structlog
from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.api.calls import Caller, unary
from duolog_server.node.api.pages import page_of
from duolog_server.node.api.rules import needs_of
from duolog_server.node.api.whomay import WhoMay
from duolog_server.node.core.core import Core
from duolog_server.node.core.ports import Answers
from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.access import Access
from duolog_server.node.identity.access.accesstokens import SECONDS_MAX
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.access.rules import need, of_topic
from duolog_server.node.identity.access.secrets import SALT_BYTES, is_password, salt_of
from duolog_server.node.identity.access.users import (
    USERS_MAX,
    User,
    check_password,
    check_user_name,
)
from duolog_server.node.identity.rights.decision import Decision
from duolog_server.node.identity.rights.policies import RIGHTS_TEXT_MAX, Acl, BadAcl
from duolog_server.node.identity.rights.resources import FOR_SUPERS, Action, Kind, Need, counts_as
from duolog_server.node.service.guard import Guard
from duolog_server.store.accesstables import SUBJECT

log = structlog.get_logger("duolog.node")

DISABLINGS_BYTES = 8  # behind the salt, in a generation
PLANNED_MAX = 1000  # calls that one request asks about
ATTEMPTS = 5  # to change a user whom others change at the same time


class AccessService(stubs.AccessServicer):
    """Users of the cluster; changes are records of the log, as all metadata."""

    def __init__(
        self, core: Core, log_: Answers, access: Access | None, guard: Guard | None = None
    ) -> None:
        """access: None where there are no users. guard: None where nobody asks what it may do."""
        self._guard = guard
        self._metadata = core.metadata
        self._admission = core.admission
        self._access = access
        self._turn = asyncio.Lock()  # of changes
        self.caught_up = log_.caught_up

    def _users(self) -> Access:
        """What a node with users has. Raises BadRequest on one without."""
        if self._access is None:
            raise sdk.BadRequest(
                "this node has no users: set access.key_file, and access.first_user_file for the "
                "first one, on all nodes of the cluster"
            )
        return self._access

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """For a change: on the master, with all changes before it, while there is no other one.

        Otherwise two super users could make each other normal ones, and a user could be created
        twice. Raises Unauthenticated or NoPermission where the caller lost its rights meanwhile.
        """
        gate = self._users().gate
        async with self._turn:
            await self._admission.until_taken()
            self._admission.check_current()
            await self._metadata.all_applied()
            self._admission.check_current()
            principal = PRINCIPAL.get()
            if principal is not None:
                gate.check(principal, (FOR_SUPERS,))
                if principal.until_ms:  # what it changed would outlast it
                    raise sdk.NoPermission(
                        "users and rights are changed with a password, not with a token"
                    )
            yield

    def _user(self, name: str) -> User | None:
        row = self._metadata.access.users.get(name)
        return User.from_row(row) if row is not None else None

    def _existing(self, name: str) -> User:
        found = self._user(name)
        if found is None:
            raise _unknown(name)
        return found

    # -- users ---------------------------------------------------------------------------------

    @unary
    async def WhoAmI(self, request: wire.WhoAmIRequest, context: Caller) -> wire.UserReply:
        """The user that calls, and which of some calls it could not make."""
        principal = PRINCIPAL.get()
        if self._access is None or principal is None:
            return wire.UserReply()
        denials = await self._denials(principal, request.calls)
        user = self._access.gate.user(principal.name)
        if user is None:
            return wire.UserReply(user=principal.name)
        # The one of a file has another on each node, until there are users.
        reply = _changed(user) if self._stored(user.name) == user.password else _reply(user)
        reply.denied = bytes(map(bool, denials))  # an answer of a few bytes: it is not counted
        reply.denial = next(filter(None, denials), "")
        return reply

    async def _denials(
        self, principal: Principal, calls: Collection[wire.PlannedCall]
    ) -> list[str]:
        """Why each of some calls would be denied. In slices. Raises BadRequest."""
        if len(calls) > PLANNED_MAX:
            raise sdk.BadRequest(
                f"{len(calls)} calls are asked about; at most {PLANNED_MAX} can be"
            )
        guard, slices = self._guard, Slices()
        if guard is None:
            return []
        return [
            await guard.why_denied(principal, needs_of(call, guard.facts), slices)
            async for call in slices.each(calls)
        ]

    @unary
    async def PutUser(self, request: wire.PutUserRequest, context: Caller) -> wire.UserReply:
        """Create a user, or alter one. The first user of a cluster must be a super user.

        To create one again as it is changes nothing: its client may not have had the answer.
        """
        access = self._users()
        check_user_name(request.user)
        if not request.HasField("password"):
            async with self._changing():
                return await self._put_user(request, "")
        check_password(request.password)
        if len(request.generation) not in (0, SALT_BYTES, SALT_BYTES + DISABLINGS_BYTES):
            raise sdk.BadRequest(f"a generation must have {SALT_BYTES} bytes")
        loop = asyncio.get_running_loop()
        for _ in range(ATTEMPTS):
            stored = self._stored(request.user)
            hashed = await loop.run_in_executor(access.thread, self._hashed, request, stored)
            async with self._changing():
                if self._stored(request.user) == stored:  # or else it was changed meanwhile
                    return await self._put_user(request, hashed)
        raise sdk.Busy(f"user {request.user!r} is changed by others all the time: try again")

    def _stored(self, name: str) -> str:
        """The hash of a user's password; empty for no user."""
        known = self._user(name)
        return known.password if known is not None else ""

    def _hashed(self, request: wire.PutUserRequest, stored: str) -> str:
        """The hash of the password in a request, of a new generation unless the user has it now.

        For a thread.
        """
        seal, told = self._users().seal, request.generation[:SALT_BYTES]
        same = bool(stored) and is_password(request.password, stored)
        if same and (not request.generation_counts or told in (b"", salt_of(stored))):
            return stored
        return seal.hash_password(request.user, request.password, told or seal.fresh_salt())

    async def _put_user(self, request: wire.PutUserRequest, hashed: str) -> wire.UserReply:
        known = self._user(request.user)
        if known is not None and request.create:
            made = self._altered(User(request.user), request, hashed)
            if known == replace(made, disablings=known.disablings):
                return _changed(known)  # a repeat
            raise sdk.BadRequest(
                f"user {request.user!r} exists already, with another password or other settings"
            )
        if known is None and not hashed:
            raise sdk.BadRequest(f"user {request.user!r} does not exist, and needs a password")
        user = self._altered(known or User(request.user), request, hashed)
        self._check_supers(user)
        if known is None and len(self._metadata.access.users) >= USERS_MAX:
            raise sdk.Busy(f"the cluster has reached its limit of {USERS_MAX} users")
        await self._metadata.change({"op": "user", "user": user.to_row()})
        if known is None:
            log.info("user created", user=user.name, by=_by())
        else:
            log.info("user altered", user=user.name, by=_by())
        return _changed(user)

    def _altered(self, user: User, request: wire.PutUserRequest, hashed: str) -> User:
        if hashed:
            seal = self._users().seal
            counted = int.from_bytes(request.generation[SALT_BYTES:], "big")
            user = replace(user, disablings=max(user.disablings, counted))
            secret = seal.close(user.name, request.password, hashed) if request.signs else ""
            user = replace(user, password=hashed, secret=secret, recovered_ms=0)
        elif request.signs and not user.secret:
            raise sdk.BadRequest("a user that is to sign needs its password once more")
        if request.HasField("super"):
            user = replace(user, is_super=request.super)
        if request.HasField("disabled"):
            ended = user.enabled and request.disabled
            disablings = user.disablings + ended
            user = replace(user, enabled=not request.disabled, disablings=disablings)
        return user

    def check_changes(self) -> None:
        """Raise NotMaster unless this node changes users."""
        self._admission.check_current()

    async def recover(self, name: str, hashed: str, source: str) -> bool:
        """Make a user an enabled super user with that password; whether it was created.

        For who proved the key. source: the address that it came from. Raises NotMaster.
        """
        now_ms = self._users().tokens.wall_ms()
        async with self._changing():
            known = self._user(name)
            user = User(name, True, True, hashed, recovered_ms=now_ms)
            await self._metadata.change({"op": "user", "user": user.to_row()})
        log.warning("a super user was recovered with the key file", user=name, source=source)
        return known is None

    def _check_supers(self, altered: User | None, deleted: str = "") -> None:
        """Raise BadRequest where no enabled super user would be left."""
        rows = self._metadata.access.users
        users = {name: User.from_row(row) for name, row in rows.items() if name != deleted}
        if altered is not None:
            users[altered.name] = altered
        if not any(user.is_super and user.enabled for user in users.values()):
            raise sdk.BadRequest("no enabled super user would be left: nobody could change users")

    @unary
    async def DeleteUser(
        self, request: wire.DeleteUserRequest, context: Caller
    ) -> wire.DeleteUserReply:
        """Delete a user, and its rights."""
        async with self._changing():
            self._existing(request.user)
            self._check_supers(None, request.user)
            await self._metadata.change({"op": "delete_user", "user": request.user})
        log.info("user deleted", user=request.user, by=_by())
        return wire.DeleteUserReply()

    @unary
    async def ListUsers(
        self, request: wire.ListUsersRequest, context: Caller
    ) -> wire.ListUsersReply:
        """Users by name, all or a page; or those who may do something, and why. In slices.

        Only a node that has the newest ones answers.
        """
        self._users()
        self._admission.check_current()
        tables, decide = self._metadata.access, self._decider(request)
        slices = Slices()

        def matches(name: str) -> bool:
            row = tables.users.get(name)
            return row is not None and decide(User.from_row(row)).allowed

        page = await page_of(list(tables.users), matches, request, slices)
        reply = wire.ListUsersReply(total=page.total, next=page.next)
        async for name in slices.each(page.names):
            row = tables.users.get(name)
            if row is None:
                continue  # deleted meanwhile
            user = User.from_row(row)
            shown = reply.users.add()
            shown.CopyFrom(_reply(user))
            if request.HasField("may"):
                shown.decision.CopyFrom(_decided(decide(user)))
        return reply

    def _decider(self, request: wire.ListUsersRequest) -> Callable[[User], Decision]:
        """Whether a user may do what a request names. Raises BadRequest."""
        if not request.HasField("may"):
            return lambda user: Decision(True, None, "", "")
        principal = PRINCIPAL.get()
        source = _source(request.may, principal)
        who = WhoMay(self._metadata.access, _need(request.may), source)
        return who.decision

    # -- rights --------------------------------------------------------------------------------

    @unary
    async def PutRights(self, request: wire.PutRightsRequest, context: Caller) -> wire.RightsReply:
        """Replace the rights of a user."""
        if not request.rights:
            async with self._changing():
                self._check_expected(request)
                await self._metadata.change({"op": "delete_rights", "user": request.user})
            log.info("rights deleted", user=request.user, by=_by())
            return wire.RightsReply(user=request.user)
        async with self._changing():
            self._check_expected(request)
            acl = _acl_of(request.user, request.rights)
            await self._metadata.change({"op": "rights", "rights": acl.to_json()})
        log.info("rights altered", user=request.user, by=_by())
        return wire.RightsReply(user=request.user, rights=_text(acl))

    @unary
    async def GetRights(self, request: wire.GetRightsRequest, context: Caller) -> wire.RightsReply:
        """The rights of a user. Only a node that has the newest ones answers: they may be put back
        with a change.
        """
        self._users()
        self._admission.check_current()
        self._existing(request.user)
        return wire.RightsReply(user=request.user, rights=self._rights(request.user))

    def _rights(self, user: str) -> str:
        row = self._metadata.access.rights.get(user)
        return json.dumps(row) if row else ""

    def _check_expected(self, request: wire.PutRightsRequest) -> None:
        """Raise BadRequest unless there is that user, with the rights that the caller has seen."""
        self._existing(request.user)
        if request.HasField("expected") and request.expected != self._rights(request.user):
            raise sdk.BadRequest(
                f"the rights of {request.user} were changed by somebody else meanwhile: repeat it"
            )

    @unary
    async def TestAccess(
        self, request: wire.TestAccessRequest, context: Caller
    ) -> wire.TestAccessReply:
        """Whether a user may do something, and why."""
        gate, principal = self._users().gate, PRINCIPAL.get()
        assert principal is not None, "only users get here"
        name = request.user or principal.name
        if name != principal.name and not gate.is_super(principal):
            raise sdk.NoPermission("only super users can see another user's permissions")
        asked, source = _need(request), _source(request, principal)
        if gate.user(name) is None and self._user(name) is None:
            self._admission.check_knows()
            raise _unknown(name)
        return _decided(gate.decision(name, asked, source))

    @unary
    async def IssueToken(
        self, request: wire.IssueTokenRequest, context: Caller
    ) -> wire.IssueTokenReply:
        """Make a token of a user."""
        access, principal = self._users(), PRINCIPAL.get()
        assert principal is not None, "only users get here"
        if principal.until_ms or not principal.credentials:
            raise sdk.NoPermission(
                "a token is made for who calls with a password: one made for a token or a "
                "certificate would outlast it"
            )
        name = request.user or principal.name
        if name != principal.name and not access.gate.is_super(principal):
            raise sdk.NoPermission("tokens of another user are made for super users only")
        if not 1 <= request.seconds <= SECONDS_MAX:
            raise sdk.BadRequest(
                f"a token for {request.seconds} s: it must be 1 to {SECONDS_MAX} s"
            )
        user = access.gate.user(name)
        if user is None:
            raise sdk.BadRequest(f"there is no enabled user {name!r}")
        log.info("token issued", user=name, by=_by(), seconds=request.seconds)
        return wire.IssueTokenReply(token=access.tokens.issue(user, request.seconds))


def _reply(user: User) -> wire.UserReply:
    reply = wire.UserReply(user=user.name, disabled=not user.enabled, signs=bool(user.secret))
    reply.super = user.is_super
    reply.recovered_ms = user.recovered_ms
    return reply


def _changed(user: User) -> wire.UserReply:
    """A user, with the generation of its password."""
    reply = _reply(user)
    reply.generation = salt_of(user.password) + _counted(user.disablings)
    return reply


def _counted(disablings: int) -> bytes:
    """What disabling a user adds to the generation of its password: nothing where it never was."""
    return disablings.to_bytes(DISABLINGS_BYTES, "big") if disablings else b""


def _unknown(name: str) -> sdk.BadRequest:
    return sdk.BadRequest(f"there is no user {name!r}")


def _decided(found: Decision) -> wire.TestAccessReply:
    entry = found.entry.text if found.entry is not None else ""
    return wire.TestAccessReply(allowed=found.allowed, entry=entry, reason=found.reason)


def _by() -> str:
    """Who makes this call."""
    principal = PRINCIPAL.get()
    return principal.name if principal is not None else ""


def _acl_of(user: str, text: str) -> Acl:
    """The rights in a request. Raises BadRequest."""
    if len(text) > RIGHTS_TEXT_MAX:
        raise sdk.BadRequest(f"the rights are longer than {RIGHTS_TEXT_MAX} characters")
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise sdk.BadRequest('rights are a JSON object with "policies"')
        return Acl.from_json({**value, "subject": SUBJECT + user})
    except BadAcl as error:
        raise sdk.BadRequest(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise sdk.BadRequest(f"the rights are no JSON: {error}") from None


def _text(acl: Acl) -> str:
    return json.dumps(acl.to_json())


def _source(request: wire.TestAccessRequest, principal: Principal | None) -> str:
    """The address that a request asks about; the caller's, if none. Raises BadRequest."""
    if not request.source:
        return principal.source if principal is not None else ""
    try:
        return str(ip_address(request.source))
    except ValueError:
        raise sdk.BadRequest(f"source {request.source!r} is not an IP address") from None


def _need(request: wire.TestAccessRequest) -> Need:
    """What a request asks about. Raises BadRequest."""
    actions = {action.lower(): action for action in Action}
    action = actions.get(request.action.lower())
    if action is None:
        raise sdk.BadRequest(f"action {request.action!r} is not one of {', '.join(Action)}")
    kind, colon, name = request.resource.partition(":")
    kinds = {one.lower(): one for one in (Kind.CLUSTER, Kind.TOPIC, Kind.GROUP)}
    found = kinds.get(kind.lower())
    if found is None or not colon or not name:
        raise sdk.BadRequest(
            f"resource {request.resource!r} is not Topic:NAME, Group:NAME or Cluster:NAME"
        )
    if found is Kind.TOPIC:
        return of_topic(name, action)
    return need(counts_as(found, name), action)
