"""Recovery of a super user by the key file: what a proof is good for."""

from collections.abc import Callable
from dataclasses import replace

import duolog
import pytest

from duolog_server.node.identity.access.recovery import PURPOSE, Claim, Claims, Place, Recovery
from duolog_server.node.identity.access.secrets import hash_password, is_hash, is_password
from duolog_server.node.identity.access.vouching import Vouching
from duolog_server.store.errors import BadMessage

KEY, OTHER = b"k" * 32, b"o" * 32
HERE = Place("c", "g", "n")
PASSWORD = "a password of the test"


class Seconds:
    """A clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def claims() -> Claims:
    return Claims(KEY, "root", PASSWORD)


def test_a_proof_is_good_once_within_a_minute_and_for_what_it_says(claims: Claims) -> None:
    clock = Seconds()
    node = Recovery(KEY, clock)
    claim, mark = claims.answer(node.begin(), HERE)
    assert is_password(PASSWORD, claim.password_hash)
    altered: list[Callable[[], tuple[Claim, Place, str]]] = [
        lambda: (replace(claim, user="mallory"), HERE, mark),
        lambda: (replace(claim, password_hash=hash_password("x")), HERE, mark),
        lambda: (replace(claim, challenge=node.begin()), HERE, mark),
        lambda: (claim, Place("c", "g", "another"), mark),
        lambda: (claim, Place("c", "another", "n"), mark),
        lambda: (claim, Place("another", "g", "n"), mark),
        lambda: (claim, HERE, ""),
        lambda: (claim, HERE, "ü" * 64),
    ]
    for make in altered:
        with pytest.raises(duolog.Unauthenticated, match="another key"):
            node.check(*make())
    node.check(claim, HERE, mark)
    with pytest.raises(duolog.Unauthenticated, match="was used"):
        node.check(claim, HERE, mark)
    late = claims.answer(node.begin(), HERE)
    clock.now += 61
    with pytest.raises(duolog.Unauthenticated, match="older than 60 s"):
        node.check(late[0], HERE, late[1])
    assert not node._challenges.use("")
    assert len(node._challenges._used) == 0, "nothing is kept longer than it is good"


def test_a_challenge_of_another_process_or_key_is_of_no_use(claims: Claims) -> None:
    one, next_process, stranger = Recovery(KEY), Recovery(KEY), Recovery(OTHER)
    claim, mark = claims.answer(one.begin(), HERE)
    with pytest.raises(duolog.Unauthenticated, match="not of this node"):
        next_process.check(claim, HERE, mark)
    with pytest.raises(duolog.Unauthenticated, match="another key"):
        stranger.check(*claims_at(stranger, claims))
    for challenge in ("", ".", "..", "1.2.3", "x" * 1000):
        with pytest.raises(duolog.Unauthenticated, match="not of this node"):
            made, its_mark = claims.answer(challenge, HERE)
            one.check(made, HERE, its_mark)


def claims_at(node: Recovery, claims: Claims) -> tuple[Claim, Place, str]:
    claim, mark = claims.answer(node.begin(), HERE)
    return claim, HERE, mark


def test_a_node_checks_names_and_hashes_of_who_has_the_key(claims: Claims) -> None:
    """A program of its own may send any."""
    node, marks = Recovery(KEY), Vouching(KEY, PURPOSE)
    good, _ = claims.answer(node.begin(), HERE)
    for claim, error in (
        (replace(good, user="a:b"), BadMessage),
        (replace(good, password_hash=good.password_hash.replace("16384", "1073741824")),
         duolog.BadRequest),
    ):  # fmt: skip
        with pytest.raises(error):
            node.check(claim, HERE, marks.mark(claim.words(HERE)))
    node.check(good, HERE, marks.mark(good.words(HERE)))


def test_only_hashes_as_nodes_make_them_are_taken(claims: Claims) -> None:
    """Others could take a node minutes to compare."""
    good = claims.answer("", HERE)[0].password_hash
    assert is_hash(good)
    for bad in (PASSWORD, "", good + "x", good.replace("16384", "1073741824"), f"{good}\n"):
        assert not is_hash(bad)
    for name, password in (("a:b", PASSWORD), ("root", ""), ("root", "duolog-token.v1.1.x")):
        with pytest.raises(BadMessage):
            Claims(KEY, name, password)
