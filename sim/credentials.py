"""What simulated users were ever given to prove who they are: passwords, and tokens for these."""

import base64
import random

from duolog_server.node.identity.access.accesstokens import AccessTokens
from duolog_server.node.identity.access.users import User
from sim.accesshistory import SET_UP
from sim.accesslog import ANY
from sim.accesswatch import AccessWatch
from sim.channels import Caller
from sim.node import WALL_MS
from sim.nodeusers import KEY, CheapSeal

ROOT = SET_UP
SHARED = "u4"  # that every administrator creates and deletes
USERS = ("u0", "u1", "u2", "u3", SHARED)
TOKEN_SECONDS = 3600 * 24 * 300


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
            return self._caller(name, password, hashed + ANY, address)
        token = self._tokens.issue(User(name, password=hashed), TOKEN_SECONDS)
        return self._caller(name, token, hashed, address)
