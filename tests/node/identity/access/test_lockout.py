"""Wrong passwords and signatures: how many are looked at, of whom, and what that costs others."""

import pytest
from duolog import Throttled
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.access import lockout as module
from duolog_server.node.identity.access.lockout import (
    COUNTS_MAX,
    FAILURE_MS,
    FREE,
    OTHERS,
    USERS_MAX,
    Lockout,
    Login,
)
from duolog_server.store.clocks import MonoMs

ALICE = Login("alice", "10.0.0.1", "10.0.0.1:5000")


class Place:
    def __init__(self) -> None:
        self.now = 1_000
        self.lockout = Lockout(lambda: MonoMs(self.now))
        self.told: list[Login] = []
        self.lockout.locked.append(self.told.append)

    def wrong(self, login: Login, times: int = 1) -> None:
        for _ in range(times):
            assert not self.lockout.guarded(login, lambda: False)
            assert not self.lockout.validate()

    def right(self, login: Login) -> bool:
        """Whether it is looked at."""
        try:
            return self.lockout.guarded(login, lambda: True)
        except Throttled:
            return False
        finally:
            assert not self.lockout.validate()


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_few_are_free_then_one_in_a_while_and_right_ones_wait_as_well(place: Place) -> None:
    place.wrong(ALICE, FREE)
    for _ in range(3):
        with pytest.raises(Throttled, match="'alice': too many logins from") as caught:
            place.wrong(ALICE)
        assert caught.value.retry_after_ms == FAILURE_MS
    assert not place.right(ALICE)
    assert (place.lockout.failures, place.lockout.refused) == (FREE, 4)
    place.now += FAILURE_MS
    place.wrong(ALICE)
    assert not place.right(ALICE)
    place.now += FAILURE_MS
    assert place.right(ALICE)
    assert [login.user for login in place.told] == ["alice"]
    place.now += FREE * FAILURE_MS
    place.wrong(ALICE, FREE)
    assert len(place.told) == 2


def test_other_addresses_and_users_go_on(place: Place) -> None:
    place.wrong(ALICE, FREE)
    assert place.right(Login("alice", "10.0.0.2", "10.0.0.2:1"))
    assert place.right(Login("bob", "10.0.0.1", "10.0.0.1:2"))
    assert not place.right(Login("alice", "::ffff:10.0.0.1"))
    place.wrong(Login("carol", "2001:db8::1"), FREE)
    assert not place.right(Login("carol", "2001:db8::ffff"))  # of the same network
    assert place.right(Login("carol", "2001:db8:0:1::1"))


def test_a_connection_that_proved_itself_goes_on_until_something_wrong_comes_over_it(
    place: Place,
) -> None:
    before, after = Login("alice", "10.0.0.1", "a:1"), Login("alice", "10.0.0.1", "a:2")
    assert place.right(before)
    place.wrong(ALICE, FREE)
    assert place.right(before)
    assert not place.right(after)
    assert not place.right(Login("alice", "10.0.0.1"))
    assert not place.lockout.guarded(before, lambda: False)  # another program has its port now
    assert not place.right(before)
    place.lockout.proved(before)  # a call that was let through before
    assert not place.right(before)


def test_of_many_at_the_same_time_no_more_are_looked_at_than_may_fail(place: Place) -> None:
    logins = [Login("alice", "10.0.0.1", f"c:{number}") for number in range(FREE)]
    for login in logins:
        place.lockout.check(login)
        place.lockout.begins(login)
    assert not place.right(ALICE)
    for login in logins:
        place.lockout.ended(login, is_right=True)
    assert place.right(ALICE)
    assert place.lockout.failures == 0
    assert not place.lockout._networks


def test_a_network_that_tries_many_names_has_one_count_for_the_rest_of_them(place: Place) -> None:
    place.wrong(ALICE, FREE)
    for number in range(2 * USERS_MAX):
        login = Login(f"user{number}", "10.0.0.1")
        if place.lockout.left_ms(login) == 0:
            place.wrong(login)
    assert place.lockout._counts == USERS_MAX + 1
    assert not place.right(ALICE), "and it does not push out what it did before"
    assert not place.right(Login("another", "10.0.0.1"))
    assert not place.right(Login(OTHERS, "10.0.0.1"))
    assert place.right(Login("another", "10.0.0.2"))
    assert not place.right(Login("x" * 300, "10.0.0.1"))


def test_memory_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COUNTS_MAX <= 20_000
    monkeypatch.setattr(module, "COUNTS_MAX", 50)
    monkeypatch.setattr(module, "PROVED_MAX", 50)
    for number in range(300):
        address = f"10.0.{number >> 8}.{number & 255}"
        place.wrong(Login("alice", address))
        assert place.right(Login("bob", address, f"{address}:1"))
    assert place.lockout._counts == len(place.lockout._proved) == 50
    place.now += FREE * FAILURE_MS
    place.wrong(ALICE)
    assert place.lockout._counts == 1


def test_users_whose_failures_are_long_forgotten_take_no_place_of_others(place: Place) -> None:
    """Also in a network that fails more often than others do."""
    for number in range(USERS_MAX):
        for seldom in ("10.0.0.8", "10.0.0.9"):
            place.wrong(Login(f"user{number}", seldom))
            place.wrong(Login(f"user{number} of {seldom}", "10.0.0.1"))
        place.now += FAILURE_MS * 2 // 3
    place.wrong(Login("guessed", "10.0.0.1"), FREE)
    assert place.right(Login("another", "10.0.0.1"))


def test_one_count_for_the_rest_is_reported_as_such(place: Place) -> None:
    for number in range(USERS_MAX + FREE):
        place.wrong(Login(f"user{number}", "10.0.0.1"))
    assert not place.right(Login("another", "10.0.0.1"))
    assert [(login.user, login.address) for login in place.told] == [(OTHERS, "10.0.0.1")]


def test_users_that_are_locked_out_are_counted(place: Place) -> None:
    assert place.lockout.locked_out == 0
    place.wrong(ALICE, FREE)
    place.wrong(Login("bob", "10.0.0.2"), FREE)
    place.wrong(Login("carol", "10.0.0.2"), FREE - 1)
    assert place.lockout.locked_out == 2
    place.now += FAILURE_MS
    assert place.lockout.locked_out == 0


def test_a_connection_that_is_used_stays_open_however_many_others_come(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROVED_MAX", 10)
    assert place.right(ALICE)
    place.wrong(Login("alice", "10.0.0.1"), FREE)
    for number in range(30):
        assert place.right(Login("bob", "10.0.0.1", f"10.0.0.1:{number}"))
        assert place.right(ALICE)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "bob"]),
            st.sampled_from(["10.0.0.1", "10.0.0.2"]),
            st.sampled_from(["", "c"]),
            st.booleans(),
            st.integers(0, 2 * FAILURE_MS),
        ),
        max_size=60,
    )
)
def test_no_network_has_more_failures_of_a_user_than_its_time_allows(
    steps: list[tuple[str, str, str, bool, int]],
) -> None:
    place, seen = Place(), dict[tuple[str, str], list[int]]()
    for user, address, connection, is_right, pause in steps:
        place.now += pause
        login = Login(user, address, connection)
        try:
            right = place.lockout.guarded(login, lambda is_right=is_right: is_right)  # type: ignore[misc]
        except Throttled:
            continue
        if not right:
            seen.setdefault((user, address), []).append(place.now)
        assert not place.lockout.validate()
    for times in seen.values():
        for first in range(len(times)):
            # One more for each right login that proved a connection before it was lost again.
            spent = (place.now - times[first]) // FAILURE_MS
            proofs = sum(step[3] and step[2] != "" for step in steps)
            assert len(times) - first <= FREE + 1 + spent + proofs
