"""What simulated users were ever given to prove who they are: passwords, and tokens for these."""

import base64
import random

from duolog_server.node.identity.access.accesstokens import AccessTokens
from duolog_server.node.identity.access.users import User
from sim.accesshistory import SET_UP
from sim.accesslog import Proof
from sim.accesswatch import AccessWatch
from sim.channels import Caller
from sim.node import WALL_MS
from sim.nodeusers import KEY

ROOT = SET_UP
SHARED = "u4"  # that every administrator creates and deletes
USERS = ("u0", "u1", "u2", "u3", SHARED)
TOKEN_SECONDS = 3600 * 24 * 300


class Credentials:
    """What users were ever given to prove who they are."""

    def __init__(self, watch: AccessWatch) -> None:
        self._watch = watch
        self._kept: dict[str, list[str]] = {}  # tokens, as they were given once
        self._tokens = AccessTokens(KEY, lambda: WALL_MS)
        self.passwords: dict[str, list[str]] = {name: [f"{name}pw"] for name in (*USERS, ROOT)}

    def new_password(self, name: str, number: int) -> str:
        """One that no other change gives."""
        self.passwords[name].append(f"pw{number}x")
        return self.passwords[name][-1]

    def _given(self, word: str, proof: Proof) -> str:
        given = "Basic " + base64.b64encode(f"{proof.name}:{word}".encode()).decode()
        self._watch.proofs[given] = proof
        return given

    def caller(self, name: str, chance: random.Random, address: str) -> Caller:
        """Who calls as a user: in most cases with what it has now."""
        how, known = chance.random(), self.passwords[name]
        if how < 0.2:
            return Caller(certificate=name, address=address)
        said, kept = self._watch.log.at(len(self._watch.log)), self._kept.setdefault(name, [])
        row = said.users.get(name)
        if how < 0.25 or (row is None and not kept):
            word = known[-1] if chance.random() < 0.8 else chance.choice(known)
            return Caller(self._given(word, Proof(name, word)), address=address)
        if row is not None and (not kept or chance.random() < 0.7):
            token = self._tokens.issue(User.from_row(row), TOKEN_SECONDS + len(kept))
            given = self._given(token, Proof(name, era=said.eras[name]))
            if given not in kept:
                kept.append(given)
            return Caller(given, address=address)
        return Caller(chance.choice(kept), address=address)
