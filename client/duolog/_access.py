"""Users and their rights."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from duolog._errors import BadRequest
from duolog._fromwire import described
from duolog._pages import Page, Wanted, joined_page, part_of
from duolog._requests import checked_request
from duolog._router import Router
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")

GENERATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class User:
    """A user of a cluster.

    Attributes:
        name: empty where the cluster has no users, and anybody may do anything.
        is_super: may do everything.
        disabled: may do nothing.
        signs: RocketMQ's clients may sign with its password.
        recovered_ms: when its password was set with the key file of the nodes, in ms since 1970; 0
            where the newest one was not.
        generation: of its password, where it was changed or is this client's: another password,
            also one that it had before, is of another one, and disabling it ends one. Empty: not
            known.
    """

    name: str
    is_super: bool = False
    disabled: bool = False
    signs: bool = False
    recovered_ms: int = 0
    generation: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a user may do something.

    Attributes:
        entry: the entry of its rights that decides; empty if none does.
        reason: why, in a sentence.
    """

    allowed: bool
    entry: str
    reason: str


@dataclass(frozen=True, slots=True)
class UserDecision:
    """A user, and whether it may do what was asked about."""

    user: User
    decision: Decision


class Access:
    """Users of a cluster and their rights. Made by `Client.access`.

    All but `who_am_i`, and `test` of one's own rights, is for super users. A change is made in
    every replica group of the cluster, and holds on every node as soon as it has it.
    """

    def __init__(self, router: Router, timeout: float) -> None:
        """Not called by users."""
        self._router = router
        self._timeout = timeout

    async def _ask(self, make: Callable[[stubs.AccessStub, float], Awaitable[T]]) -> T:
        seed = self._router.seed
        return await seed.call(lambda left: make(seed.access, left), self._timeout)

    async def who_am_i(self) -> User:
        """The user that this client is."""
        request = wire.WhoAmIRequest()
        return _user(await self._ask(lambda stub, left: stub.WhoAmI(request, timeout=left)))

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        is_super: bool = False,
        signs: bool = False,
        disabled: bool = False,
    ) -> User:
        """Create a user. Raises BadRequest if there is one of that name which is not like this one:
        a call that is repeated succeeds.
        """
        return await self._put(
            checked_request(
                wire.PutUserRequest,
                user=name,
                password=password,
                super=is_super,
                signs=signs,
                disabled=disabled,
                create=True,
            )
        )

    async def alter_user(
        self,
        name: str,
        *,
        password: str | None = None,
        signs: bool = False,
        is_super: bool | None = None,
        disabled: bool | None = None,
    ) -> User:
        """Alter a user; what is not given stays. signs: with a password, as `User.signs`."""
        return await self._put(
            checked_request(
                wire.PutUserRequest,
                user=name,
                password=password,
                super=is_super,
                disabled=disabled,
                signs=signs,
            )
        )

    async def _put(self, request: wire.PutUserRequest) -> User:
        drawn = b""
        if request.HasField("password"):
            request.generation = drawn = secrets.token_bytes(GENERATION_BYTES)
        answers = await self._put_everywhere(request)
        told = [answer.generation for answer in answers]
        if drawn and b"" not in told and len(set(told)) > 1:
            # Some replica groups have this password already, others did not: as before the call.
            again = wire.PutUserRequest(user=request.user, password=request.password)
            again.signs, again.generation_counts = request.signs, True
            again.generation = max(told, key=lambda one: (one[:GENERATION_BYTES] != drawn, one))
            answers = await self._put_everywhere(again)
        return _user(answers[0])

    async def _put_everywhere(self, request: wire.PutUserRequest) -> list[wire.UserReply]:
        return await self._everywhere(lambda stub, left: stub.PutUser(request, timeout=left))

    async def _everywhere(
        self, change: Callable[[stubs.AccessStub, float], Awaitable[T]]
    ) -> list[T]:
        """Make a change in every replica group; it fails where one of them cannot be reached, as
        who was disabled could continue there.
        """
        groups = await self._router.all_groups(self._timeout)
        return await self._router.everywhere(
            lambda connection, left: change(connection.access, left), self._timeout, groups=groups
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user and its rights. Raises BadRequest if there is none of that name."""
        request = checked_request(wire.DeleteUserRequest, user=name)
        await self._everywhere(lambda stub, left: stub.DeleteUser(request, timeout=left))

    async def users(self) -> list[User]:
        """All users, by name."""
        reply = await self._listed(wire.ListUsersRequest())
        return [_user(row) for row in reply.users]

    async def users_page(
        self, contains: str = "", *, after: str = "", limit: int = 100
    ) -> Page[User]:
        """Users by name, so many at a time. Raises BadRequest.

        Args:
            contains: a part of their names, in any case; empty: all users.
            after: only names behind this one: `Page.next` of the page before.
            limit: at most so many; 0: all.
        """
        wanted = Wanted(contains, after, limit)
        request = checked_request(
            wire.ListUsersRequest, contains=contains, after=after, limit=limit
        )
        reply = await self._listed(request)
        return joined_page([part_of(map(_user, reply.users), _name, reply, wanted)], _name, wanted)

    async def who_may(
        self,
        action: str,
        resource: str,
        *,
        source: str = "",
        after: str = "",
        limit: int = 100,
    ) -> Page[UserDecision]:
        """The users who may do something, with the entries that decide. Raises BadRequest.

        Args:
            action, resource, source: see `test`.
            after, limit: see `users_page`.
        """
        wanted = Wanted("", after, limit)
        may = checked_request(
            wire.TestAccessRequest, action=action, resource=resource, source=source
        )
        reply = await self._listed(
            checked_request(wire.ListUsersRequest, after=after, limit=limit, may=may)
        )
        if not reply.HasField("total"):
            raise BadRequest("this node is of an older version, which does not say who may")
        rows = map(_user_decision, reply.users)
        return joined_page([part_of(rows, _decided_name, reply, wanted)], _decided_name, wanted)

    async def _listed(self, request: wire.ListUsersRequest) -> wire.ListUsersReply:
        return await self._ask(lambda stub, left: stub.ListUsers(request, timeout=left))

    async def rights(self, name: str) -> str:
        """The rights of a user, as JSON; empty for none."""
        request = checked_request(wire.GetRightsRequest, user=name)
        return (await self._ask(lambda stub, left: stub.GetRights(request, timeout=left))).rights

    async def set_rights(self, name: str, rights: str, *, expected: str | None = None) -> str:
        """Replace the rights of a user; the rights as they are now. Raises BadRequest.

        Args:
            name: the user.
            rights: JSON as RocketMQ 5 has it, {"policies": [...]}; empty: none.
            expected: as `rights` told them: if somebody changed them since, nothing is replaced.
        """
        request = checked_request(
            wire.PutRightsRequest, user=name, rights=rights, expected=expected
        )
        answers = await self._everywhere(lambda stub, left: stub.PutRights(request, timeout=left))
        return answers[0].rights

    async def test(
        self, action: str, resource: str, *, user: str = "", source: str = ""
    ) -> Decision:
        """Whether a user may do something, and which entry decides.

        Args:
            action: Pub, Sub, Create, Update, Delete, Get or List.
            resource: Topic:NAME, Group:NAME or Cluster:NAME.
            user: this client's where not given.
            source: address that the user would come from; this client's where not given.
        """
        request = checked_request(
            wire.TestAccessRequest, user=user, action=action, resource=resource, source=source
        )
        return _decision(await self._ask(lambda stub, left: stub.TestAccess(request, timeout=left)))

    async def issue_token(self, seconds: int, *, user: str = "") -> str:
        """A token that a program gives in the place of the password.

        Args:
            seconds: that it is good for, at most a year. A new password of the user ends it, too.
            user: this client's where not given; of others for super users.
        """
        request = checked_request(wire.IssueTokenRequest, user=user, seconds=seconds)
        return (await self._ask(lambda stub, left: stub.IssueToken(request, timeout=left))).token


async def denials_of(access: Access, calls: Sequence[wire.PlannedCall]) -> list[str]:
    """Why each of some calls would be denied to this client's user; empty for one that would not.

    Nodes say why of the first one alone. Where there are no users, or an older node does not say,
    none would.
    """
    request = wire.WhoAmIRequest(calls=calls)
    reply = await access._ask(lambda stub, left: stub.WhoAmI(request, timeout=left))
    denials = ["denied" if one else "" for one in reply.denied] or [""] * len(calls)
    if reply.denial:
        denials[denials.index("denied")] = reply.denial
    return denials


def _user(reply: wire.UserReply) -> User:
    return described(User, reply, name=reply.user, is_super=reply.super)


def _decision(reply: wire.TestAccessReply) -> Decision:
    return described(Decision, reply)


def _user_decision(reply: wire.UserReply) -> UserDecision:
    return UserDecision(_user(reply), _decision(reply.decision))


def _name(user: User) -> str:
    return user.name


def _decided_name(row: UserDecision) -> str:
    return row.user.name
