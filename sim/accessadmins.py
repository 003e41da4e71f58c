"""Administrators of users, rights and quotas: each changes its own, one after the other.

Each change has something that no other one has, where it can: see `accesshistory.py`.
"""

import json

from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from sim.accesscalls import AccessCalls
from sim.accesshistory import REFUSED
from sim.channels import Caller
from sim.credentials import ROOT, SHARED, USERS

PATTERNS = ("qa", "qb", "ra", "q*", "*")
QUOTAS = (("User:u0", "User:*", "Topic:qa"), ("Client:10.0.0.1", "Topic:ra"))
AGAIN = 0.4  # of the passwords that are given, the user had before
BURST_MS = 100  # and as many more as there were changes


class AccessAdmins:
    """All administrators. working: how many wait for an answer."""

    def __init__(self, calls: AccessCalls) -> None:
        self._calls = calls
        self._chance = calls.chance
        self.working = 0

    async def administer(self, who: int) -> None:
        """Change some users and quotas, one after the other."""
        await self._calls.until_ready()
        while not self._calls.draining:
            self.working += 1
            how = self._chance.random()
            if how < 0.15:
                await self._change_shared()
            elif how < 0.75:
                await self._change_user(self._chance.choice(USERS[who:4:2]))
            else:
                await self.change_quota(self._chance.choice(QUOTAS[who]))
            self.working -= 1
            await self._calls.pause(60)

    async def _change_shared(self) -> None:
        """Create or delete a user, as the others do at the same time."""
        number, access = len(self._calls.history.changes), stubs.AccessStub
        if self._chance.random() < 0.4:
            delete = wire.DeleteUserRequest(user=SHARED)
            await self._calls.make(access, "DeleteUser", delete, ("delete_user", SHARED, ""))
            return
        credentials = self._calls.credentials
        word = credentials.new_password(SHARED, number)
        put = wire.PutUserRequest(user=SHARED, password=word, create=True)
        await self._calls.make(access, "PutUser", put, ("user", SHARED, word))

    async def _change_user(self, name: str) -> None:
        number, how = len(self._calls.history.changes), self._chance.random()
        access = stubs.AccessStub
        if how < 0.2:
            name = name if how < 0.18 else ROOT  # the last super user cannot be deleted
            request = wire.DeleteUserRequest(user=name)
            await self._calls.make(access, "DeleteUser", request, ("delete_user", name, ""))
        elif how < 0.5:
            credentials, mark = self._calls.credentials, ""
            known = credentials.passwords[name]
            if self._chance.random() < AGAIN:
                known.append(self._chance.choice(known))
            else:
                mark = credentials.new_password(name, number)
            put = wire.PutUserRequest(user=name, password=known[-1])
            await self._calls.make(access, "PutUser", put, ("user", name, mark))
            if mark and self._calls.history.changes[number].outcome == REFUSED:
                known.remove(mark)  # so that it is never made
        elif how < 0.7:
            put = wire.PutUserRequest(user=name)
            put.disabled = self._chance.random() < 0.6
            if self._chance.random() < 0.3:
                put.super = self._chance.random() < 0.5
            mark = "disable" if put.disabled else "enable"
            await self._calls.make(access, "PutUser", put, ("user", name, mark))
        else:
            rights = wire.PutRightsRequest(user=name, rights=self._rights(number))
            await self._calls.make(access, "PutRights", rights, ("rights", name, f"m{number}x"))

    async def change_quota(self, subject: str, caller: Caller | None = None) -> None:
        """Set a quota, or delete it. caller: sets it in place of root."""
        number, chance = len(self._calls.history.changes), self._chance
        if chance.random() < 0.3 and caller is None:
            delete = wire.DeleteQuotaRequest(subject=subject)
            await self._calls.make(
                stubs.AdminStub, "DeleteQuota", delete, ("delete_quota", subject, "")
            )
            return
        put = wire.PutQuotaRequest(subject=subject, burst_ms=BURST_MS + number)
        put.messages_in = chance.choice((5, 20, 60))
        if chance.random() < 0.3:
            put.bytes_in = chance.choice((200, 1000))
        what = "quota", subject, str(put.burst_ms)
        await self._calls.make(stubs.AdminStub, "PutQuota", put, what, caller)

    def _rights(self, number: int) -> str:
        """A few entries, and one as a mark that no other change has."""
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
