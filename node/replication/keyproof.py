"""The proof that both ends of a replication stream have the key of their cluster.

| step | by | sends |
|-----:|----|-------|
| 1 | slave | its name and a challenge, as headers of the call |
| 2 | master | its name, a challenge, and its mark, as headers of the answer |
| 3 | slave | its mark, as the first message; its Hello follows |

A mark is made with a key of this purpose alone, and covers the role, the cluster, the group, both
names and both challenges. Rules: no clock takes part; each end draws a challenge for each
connection, so that a recorded mark is of no use later; the mark of one role is none of the other;
before step 3 a master tells nothing, and before step 2 a slave neither.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from duolog_server.ha.localreplica import Member

CHALLENGE_BYTES = 32
NODE = "x-duolog-node"  # quoted as in URLs
CHALLENGE = "x-duolog-challenge"  # in hexadecimal
MARK = "x-duolog-proof"
MAGIC = b"DLKP"  # begins the slave's proof
MASTER, SLAVE = "master", "slave"
SAME_FILE = "give all nodes of the group the same access.key_file"

Headers = Mapping[str, str | bytes]
Header = tuple[str, str]


class Unproven(Exception):
    """The other end does not prove that it has the key; the text says why, and what to do."""


class Marks(Protocol):
    """Makes and checks marks under the key of the cluster."""

    def mark(self, words: Iterable[str]) -> str:
        """The mark of some words."""

    def is_mark(self, given: str, words: Iterable[str]) -> bool:
        """Whether that is the mark of these words; takes equally long for all of its length."""


class KeyProof:
    """A node's proof of its key, and check of others' proofs."""

    def __init__(self, marks: Marks, me: Member, *, required: bool = True) -> None:
        """required: other nodes must prove the key; otherwise they may have none, not another."""
        self.marks = marks
        self.me = me
        self.required = required

    def opening(self) -> "Opening":
        """A slave calls a master."""
        return Opening(self, secrets.token_hex(CHALLENGE_BYTES))

    def answer(self, headers: Headers) -> "Answer | None":
        """A master is called; None: by a slave without a key. Raises Unproven."""
        challenge = str(headers.get(CHALLENGE, ""))
        if not challenge:
            if self.required:
                raise Unproven(
                    "this master has a key file, and the slave does not prove that it has the "
                    f"key: {SAME_FILE}"
                )
            return None
        if len(challenge) != 2 * CHALLENGE_BYTES:
            raise Unproven("the slave's challenge has another length")
        slave = unquote(str(headers.get(NODE, "")))
        if not slave:
            raise Unproven("the slave does not give its name")
        return Answer(self, slave, challenge, secrets.token_hex(CHALLENGE_BYTES))

    def words(self, role: str, names: tuple[str, str], challenges: tuple[str, str]) -> list[str]:
        """The bytes that a mark covers; names, challenges: the slave's first."""
        return [role, self.me.cluster, self.me.group, *names, *challenges]


@dataclass(frozen=True, slots=True)
class Opening:
    """The slave's side of one connection."""

    proof: KeyProof
    challenge: str

    @property
    def headers(self) -> tuple[Header, ...]:
        """Headers of the call."""
        return (NODE, quote(self.proof.me.node, safe="")), (CHALLENGE, self.challenge)

    def first_message(self, headers: Headers) -> bytes | None:
        """The slave's proof; None to a master without a key.

        headers: those of the master's answer. Raises Unproven.
        """
        proof, theirs = self.proof, str(headers.get(CHALLENGE, ""))
        if not theirs:
            if proof.required:
                raise Unproven(
                    "this slave has a key file, and the master does not prove that it has the "
                    f"key: {SAME_FILE}"
                )
            return None
        names = proof.me.node, unquote(str(headers.get(NODE, "")))
        challenges = self.challenge, theirs
        given = str(headers.get(MARK, ""))
        if not proof.marks.is_mark(given, proof.words(MASTER, names, challenges)):
            raise Unproven(f"the master has another key, cluster or group: {SAME_FILE}")
        return MAGIC + proof.marks.mark(proof.words(SLAVE, names, challenges)).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """The master's side of one connection; slave: the name that the slave says it has."""

    proof: KeyProof
    slave: str
    theirs: str
    ours: str

    def _words(self, role: str) -> list[str]:
        names = self.slave, self.proof.me.node
        return self.proof.words(role, names, (self.theirs, self.ours))

    @property
    def headers(self) -> tuple[Header, ...]:
        """Headers of the answer."""
        return (
            (NODE, quote(self.proof.me.node, safe="")),
            (CHALLENGE, self.ours),
            (MARK, self.proof.marks.mark(self._words(MASTER))),
        )

    def check(self, message: bytes) -> None:
        """Raise Unproven unless the slave's first message proves that it has the key."""
        given = message[len(MAGIC) :] if message.startswith(MAGIC) else b""
        text = given.decode("ascii", "replace")
        if not self.proof.marks.is_mark(text, self._words(SLAVE)):
            raise Unproven(f"the slave has another key, cluster or group: {SAME_FILE}")
