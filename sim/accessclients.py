"""Programs that use a cluster with users: administrators, and callers who may do some things.

Administrators change users, rights and quotas through the native API, and delete them. Callers give
tokens, passwords or certificates, also old ones and those of deleted users, to masters and slaves.
"""

import asyncio
import base64
import json
import random
from typing import Any

import grpc
import grpc.aio
from duolog import _errors as sdk
from duolog._columns import crc32, pack
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from node.access.accesstokens import AccessTokens
from node.access.users import User
from sim.accesshistory import OK, REFUSED, SET_UP, AccessHistory
from sim.accesswatch import AccessWatch
from sim.channels import Caller, SimChannel
from sim.confirmedtables import ConfirmedTables
from sim.intouch import LOOK_MS, InTouch
from sim.loop import SimLoop
from sim.node import WALL_MS
from sim.nodeusers import FIRST, KEY, CheapSeal
from sim.stage import Stage

ROOT = SET_UP
USERS = ("u0", "u1", "u2", "u3")
TOPICS = ("qa", "qb", "ra")
PATTERNS = ("qa", "qb", "ra", "q*", "*")
ADDRESSES = ("10.0.0.1", "10.0.0.2")
QUOTAS = (("User:u0", "User:*", "Topic:qa"), ("Client:10.0.0.1", "Topic:ra"))
OF_CALLERS = "User:nobody"  # a quota that callers try to set
ASKED_ANYWHERE = ("TestAccess", "Pull")
CALL_SECONDS = 0.9
BURST_MS = 100  # and as many more as there were changes
TOKEN_SECONDS = 3600 * 24 * 300
# Errors of calls that changed nothing for certain.
NOTHING = (
    sdk.BadRequest,
    sdk.NotMaster,
    sdk.Busy,
    sdk.Unauthenticated,
    sdk.NoPermission,
    sdk.TopicExists,
)


class Credentials:
    """What users were ever given to prove who they are."""

    def __init__(self, watch: AccessWatch) -> None:
        self._watch = watch
        self._seal = CheapSeal(KEY)
        self._tokens = AccessTokens(KEY, lambda: WALL_MS)
        self.passwords: dict[str, list[str]] = {name: [f"{name}pw"] for name in (*USERS, ROOT)}

    def new_password(self, name: str, number: int) -> str:
        """One that no other change gives."""
        self.passwords[name].append(f"pw{number}x")
        return self.passwords[name][-1]

    def hashed(self, name: str, password: str) -> str:
        """As the tables have it."""
        return self._seal.hash_password(name, password)

    def _caller(self, name: str, word: str, hashed: str, address: str) -> Caller:
        given = "Basic " + base64.b64encode(f"{name}:{word}".encode()).decode()
        self._watch.proofs[given] = name, hashed
        return Caller(given, address=address)

    def caller(self, name: str, chance: random.Random, address: str) -> Caller:
        """Who calls as a user: in most cases with what it has now."""
        how = chance.random()
        if how < 0.2:
            return Caller(certificate=name, address=address)
        known = self.passwords[name]
        password = known[-1] if chance.random() < 0.8 else chance.choice(known)
        hashed = self.hashed(name, password)
        if how < 0.25:
            return self._caller(name, password, hashed, address)
        token = self._tokens.issue(User(name, password=hashed), TOKEN_SECONDS)
        return self._caller(name, token, hashed, address)


class AccessClients:
    """All of them."""

    def __init__(self, cluster: Stage, tables: ConfirmedTables) -> None:
        self.world = world = cluster.world
        self.history = AccessHistory()
        self.watch = AccessWatch(tables)
        self.credentials = Credentials(self.watch)
        self.draining = False
        self._ready = False
        self._working = 0  # calls of administrators
        self._cluster = cluster
        self._chance = world.chance("access")
        self._loop = SimLoop(
            lambda delay, do: world.after(delay, do),
            lambda: world.now / 1000,
            world.chance("access loop"),
        )
        self._touch = InTouch(cluster)
        for node in cluster.nodes:
            node.guard_of = self.watch.guard
            node.on_answered.append(self.watch.told)
            node.on_settled.append(self.watch.settled)

    # -- the run -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all programs."""
        self._loop.run_now(self._begin)

    def _begin(self) -> None:
        programs = [self._set_up(), *(self._administer(k) for k in range(2))]
        self.world.after(LOOK_MS, self._touch.look)
        for program in [*programs, *(self._call(address) for address in ADDRESSES)]:
            self._loop.create_task(program)

    def drain(self) -> None:
        """Nothing more is changed."""
        self.draining = True

    def unfinished(self) -> str:
        """What is still to be done; empty for nothing."""
        if not self._ready:
            return "there are no users yet"
        return "an administrator waits for an answer" if self._working else ""

    def stop(self) -> None:
        """The run is over."""
        self._loop.close()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        made = [one for one in self.history.changes if one.outcome == OK]
        return {
            "access_changed": len(made),
            "access_unknown": sum(one.outcome not in (OK, REFUSED) for one in self.history.changes),
            "access_admitted": self.watch.admitted,
            "access_denied": self.watch.denied,
            "access_strangers": self.watch.unknown,
            "quota_passed": self.watch.quotas.passed,
            "quota_throttled": self.watch.quotas.throttled,
            "quota_waits_kept": self.watch.quotas.kept,
        }

    # -- calls ---------------------------------------------------------------------------------

    async def _pause(self, mean_ms: float) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / mean_ms) / 1000)

    async def _until_ready(self) -> None:
        while not self._ready:
            await self._pause(50)

    def _channel(self, caller: Caller, of_master: bool) -> SimChannel:
        """To a node; for changes mostly to the one that leads."""
        master = self._cluster.keeper.master
        node = self._chance.choice(self._cluster.nodes)
        if of_master and master is not None and self._chance.random() < 0.9:
            node = master
        return SimChannel(self._cluster.network, node, caller)

    async def _ask(self, service: Any, method: str, request: Any, caller: Caller) -> Any:
        """Call a method. Raises what the SDK would raise."""
        stub = service(self._channel(caller, method not in ASKED_ANYWHERE))
        try:
            return await getattr(stub, method)(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise sdk.error_of(error) from None

    async def _set_up(self) -> None:
        """The first user makes a super user, who makes the topics."""
        made = wire.PutUserRequest(user=ROOT, password=self.credentials.passwords[ROOT][0])
        made.super = made.create = True
        await self._until_done(stubs.AccessStub, "PutUser", made, Caller(certificate=FIRST))
        for topic in TOPICS:
            request = wire.TopicRequest(topic=topic, queues=1)
            await self._until_done(stubs.AdminStub, "CreateTopic", request, self._root())
        self._ready = True

    async def _until_done(self, service: Any, method: str, request: Any, caller: Caller) -> None:
        while True:
            try:
                await self._ask(service, method, request, caller)
            except sdk.TopicExists:
                return
            except sdk.DuologError:
                if method == "PutUser" and ROOT in self.watch.log.at(len(self.watch.log)).users:
                    return  # an attempt before has done it
                await self._pause(50)
            else:
                return

    @staticmethod
    def _root() -> Caller:
        return Caller(certificate=ROOT)

    # -- administrators ------------------------------------------------------------------------

    async def _administer(self, who: int) -> None:
        """Change some users and quotas, one after the other."""
        await self._until_ready()
        while not self.draining:
            self._working += 1
            if self._chance.random() < 0.7:
                await self._change_user(self._chance.choice(USERS[who::2]))
            else:
                await self._change_quota(self._chance.choice(QUOTAS[who]))
            self._working -= 1
            await self._pause(60)

    async def _make(
        self,
        service: Any,
        method: str,
        request: Any,
        what: tuple[str, str, str],
        caller: Caller | None = None,
    ) -> None:
        """Ask for a change. what: its kind, its subject, and its mark. caller: who is not root."""
        log = self.watch.log
        change = self.history.begin(*what, len(log))
        try:
            await self._ask(service, method, request, caller or self._root())
        except NOTHING:
            change.outcome = REFUSED
        except sdk.DuologError:
            pass
        else:
            change.outcome = OK
            end = self.history.place(change, log.changes(change.began)) + 1
            self.watch.acknowledge(end)
            self._touch.acknowledged(end)

    async def _change_user(self, name: str) -> None:
        number, how = len(self.history.changes), self._chance.random()
        access = stubs.AccessStub
        if how < 0.2:
            name = name if how < 0.18 else ROOT  # who is needed
            request = wire.DeleteUserRequest(user=name)
            await self._make(access, "DeleteUser", request, ("delete_user", name, ""))
        elif how < 0.5:
            put = wire.PutUserRequest(
                user=name, password=self.credentials.new_password(name, number)
            )
            hashed = self.credentials.hashed(name, put.password)
            await self._make(access, "PutUser", put, ("user", name, hashed))
        elif how < 0.7:
            put = wire.PutUserRequest(user=name)
            put.disabled = self._chance.random() < 0.6
            if self._chance.random() < 0.3:
                put.super = self._chance.random() < 0.5
            mark = "disable" if put.disabled else "enable"
            await self._make(access, "PutUser", put, ("user", name, mark))
        else:
            rights = wire.PutRightsRequest(user=name, rights=self._rights(number))
            await self._make(access, "PutRights", rights, ("rights", name, f"m{number}x"))

    async def _change_quota(self, subject: str, caller: Caller | None = None) -> None:
        number, chance = len(self.history.changes), self._chance
        if chance.random() < 0.3 and caller is None:
            delete = wire.DeleteQuotaRequest(subject=subject)
            await self._make(stubs.AdminStub, "DeleteQuota", delete, ("delete_quota", subject, ""))
            return
        put = wire.PutQuotaRequest(subject=subject, burst_ms=BURST_MS + number)
        put.messages_in = chance.choice((5, 20, 60))
        if chance.random() < 0.3:
            put.bytes_in = chance.choice((200, 1000))
        what = "quota", subject, str(put.burst_ms)
        await self._make(stubs.AdminStub, "PutQuota", put, what, caller)

    def _rights(self, number: int) -> str:
        """A few entries, and one that no other change has."""
        chance = self._chance
        entries = [
            {
                "resource": f"Topic:{chance.choice(PATTERNS)}",
                "actions": chance.choice((["Pub"], ["Sub"], ["Pub", "Sub"])),
                "decision": chance.choice(("Allow", "Allow", "Allow", "Deny")),
            }
            for _ in range(chance.randint(1, 3))
        ]
        mark = {"resource": f"Topic:m{number}x", "actions": ["Get"], "decision": "Deny"}
        return json.dumps({"policies": [{"policyType": "Custom", "entries": [*entries, mark]}]})

    # -- callers -------------------------------------------------------------------------------

    async def _call(self, address: str) -> None:
        """Do this and that, as one user or another."""
        await self._until_ready()
        chance = self._chance
        while True:
            caller = self._caller(address)
            topic, how = chance.choice(TOPICS), chance.random()
            try:
                if how < 0.25:
                    action = chance.choice(("Pub", "Sub"))
                    test = wire.TestAccessRequest(action=action, resource=f"Topic:{topic}")
                    await self._ask(stubs.AccessStub, "TestAccess", test, caller)
                elif how < 0.45:
                    pull = wire.PullRequest(topic=topic, max_messages=1, wait_ms=50)
                    await self._ask(stubs.MessagesStub, "Pull", pull, caller)
                elif how < 0.97 or self.draining:
                    await self._send(topic, caller)
                else:
                    await self._change_quota(OF_CALLERS, caller)
            except (sdk.DuologError, TimeoutError):
                pass
            await self._pause(30)

    def _caller(self, address: str) -> Caller:
        """One of the users, or who can do everything, or could before there were users."""
        chance, who = self._chance, self._chance.random()
        if who < 0.04:
            return Caller(certificate=FIRST, address=address)
        name = ROOT if who < 0.25 else chance.choice(USERS)
        return self.credentials.caller(name, chance, address)

    async def _send(self, topic: str, caller: Caller) -> None:
        """A stream of some batches; it goes on though some are refused."""
        stream = stubs.MessagesStub(self._channel(caller, True)).Append()  # type: ignore[arg-type]
        try:
            for _ in range(self._chance.randint(1, 10)):
                await stream.write(_batch(topic, self._chance.randint(1, 3)))
                async with asyncio.timeout(CALL_SECONDS):
                    reply: Any = await stream.read()
                if reply is grpc.aio.EOF:
                    return
                if reply.status == wire.THROTTLED and self._chance.random() < 0.7:
                    await asyncio.sleep(min(reply.retry_after_ms + 3, 400) / 1000)
                else:
                    await self._pause(10)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            stream.cancel()


def _batch(topic: str, count: int) -> wire.AppendRequest:
    """So many messages."""
    bodies, texts = pack([b"for whom it may concern"] * count), pack([b""] * count)
    return wire.AppendRequest(
        topic=topic,
        bodies=bodies[0],
        body_offsets=bodies[1],
        property_offsets=texts[1],
        crc32=crc32(*bodies, *texts),
        born_time=WALL_MS,
    )
