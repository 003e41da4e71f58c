"""The gate: who is who, and what it remembers."""

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import duolog
import pytest

from duolog_server.node.identity.access import gate as module
from duolog_server.node.identity.access.accesstokens import AccessTokens
from duolog_server.node.identity.access.frameskeys import KEY_SECONDS, KEYS_MAX, SharedKey, UserKeys
from duolog_server.node.identity.access.gate import PRINCIPAL, Gate, Principal
from duolog_server.node.identity.access.lockout import FREE
from duolog_server.node.identity.access.secrets import Seal, hash_password, is_password
from duolog_server.node.identity.access.users import User
from duolog_server.node.identity.access.vouching import Vouching
from duolog_server.node.identity.rights.policies import Acl, Entry, Pattern
from duolog_server.node.identity.rights.resources import FOR_SUPERS, Action, Need, topic
from duolog_server.store.accesstables import AccessTables

SEAL = Seal(b"k" * 32)
HASHES = {password: hash_password(password) for password in ("right", "other")}
PUB = Need(topic("T"), frozenset((Action.PUB,)))
ALLOW = Acl("alice", (Entry(Pattern.parse("Topic:T"), frozenset((Action.PUB,))),))


def header(user: str, password: str = "right") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Place:
    """A gate, its tables, and how often a password was compared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: User | None = None) -> None:
        self.tables = AccessTables()
        self.compared: list[str] = []
        self.threads = ThreadPoolExecutor(1)
        self.now_ms, self.knows = 1_000_000, True
        self.tokens = AccessTokens(b"k" * 32, lambda: self.now_ms)
        self.gate = Gate(
            lambda: self.tables,
            SEAL,
            self.tokens,
            lambda name: first if first and first.name == name and self.knows else None,
            self.threads,
        )

        def noted(password: str, stored: str) -> bool:
            self.compared.append(password)
            return is_password(password, stored)

        monkeypatch.setattr(module, "is_password", noted)

    def put(self, name: str, password: str = "right", **how: Any) -> None:
        self.tables.put_user(replace(User(name, password=HASHES[password]), **how).to_row())


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(monkeypatch)
    made.put("alice")
    made.tables.put_rights(ALLOW.to_json())
    return made


async def test_a_right_password_is_compared_once(place: Place) -> None:
    for _ in range(3):
        assert (await place.gate.by_password(header("alice"), "::1")).name == "alice"
    assert place.compared == ["right"]


async def test_a_password_that_changed_is_compared_anew(place: Place) -> None:
    before = await place.gate.by_password(header("alice"), "")
    place.put("alice", "other")
    assert not place.gate.is_current(before)
    with pytest.raises(duolog.Unauthenticated, match="alice"):
        place.gate.check(before, [])
    with pytest.raises(duolog.Unauthenticated, match="alice"):
        await place.gate.by_password(header("alice"), "")
    after = await place.gate.by_password(header("alice", "other"), "")
    place.gate.check(after, [PUB])
    place.put("alice")  # the old password again: it was remembered for other credentials
    assert (await place.gate.by_password(header("alice"), "")).name == "alice"


async def test_nobody_is_compared_as_well(place: Place) -> None:
    """An answer takes as long as for a user that exists."""
    with pytest.raises(duolog.Unauthenticated, match="wrong"):
        await place.gate.by_password(header("bob"), "")
    place.put("carol", enabled=False)
    with pytest.raises(duolog.Unauthenticated, match="wrong"):
        await place.gate.by_password(header("carol"), "")
    assert len(place.compared) == 2


async def test_too_many_logins_at_once_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARED_MAX", 4)
    words = [header("alice", f"wrong{k}") for k in range(10)]
    answers = await asyncio.gather(
        *(place.gate.by_password(word, "") for word in words), return_exceptions=True
    )
    kinds = [type(answer) for answer in answers]
    assert kinds.count(duolog.Unauthenticated) == 4
    assert kinds.count(duolog.Busy) == 6
    assert (await place.gate.by_password(header("alice"), "")).name == "alice"


async def test_logins_of_one_address_leave_room_for_others(place: Place) -> None:
    words = [header(f"alice{k % 8}", f"wrong{k}") for k in range(40)]
    answers = asyncio.gather(
        *(place.gate.by_password(word, "10.0.0.1") for word in words), return_exceptions=True
    )
    await asyncio.sleep(0)
    assert (await place.gate.by_password(header("alice"), "10.0.0.2")).name == "alice"
    kinds = [type(answer) for answer in await answers]
    assert kinds.count(duolog.Unauthenticated) == module.COMPARED_OF_ONE_MAX
    assert kinds.count(duolog.Busy) == 40 - module.COMPARED_OF_ONE_MAX


@pytest.mark.parametrize("password", ["right", "wrong"])
async def test_equal_logins_at_the_same_time_are_compared_once(place: Place, password: str) -> None:
    first, *others = [
        asyncio.create_task(place.gate.by_password(header("alice", password), "::1"))
        for _ in range(100)
    ]
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert len({type(answer) for answer in answers}) == 1
    assert len(place.compared) == 1
    assert not place.gate._compared


@pytest.mark.parametrize("password", ["right", "wrong"])
async def test_the_last_free_login_is_answered_to_all_who_wait_for_it(
    place: Place, password: str
) -> None:
    """It counts as failed while it is compared: who asks the same meanwhile is not locked out."""
    for number in range(FREE - 1):
        await asyncio.gather(
            place.gate.by_password(header("alice", f"wrong{number}"), "::1"), return_exceptions=True
        )
    first = asyncio.create_task(place.gate.by_password(header("alice", password), "::1"))
    await asyncio.sleep(0)
    other = place.gate.by_password(header("alice", password), "::1")
    answers = await asyncio.gather(first, other, return_exceptions=True)
    assert len({type(answer) for answer in answers}) == 1
    assert duolog.Throttled not in map(type, answers)
    assert place.gate.lockout.refused == 0


async def test_many_machines_of_a_network_log_in_at_once(place: Place) -> None:
    """As after a restart of the node: none of them counts as failed meanwhile."""
    logins = [place.gate.by_password(header("alice"), f"2001:db8::{k}") for k in range(1, 40)]
    assert {found.name for found in await asyncio.gather(*logins)} == {"alice"}
    assert len(place.compared) == 1


async def test_an_equal_login_goes_on_where_the_first_is_cancelled(place: Place) -> None:
    first, other = [
        asyncio.create_task(place.gate.by_password(header("alice"), "::1")) for _ in range(2)
    ]
    await asyncio.sleep(0)
    first.cancel()
    assert (await other).name == "alice"
    assert not place.gate._compared


async def test_long_names_are_neither_remembered_nor_told(place: Place) -> None:
    """A request may have megabytes of them."""
    found = place.gate.decision(
        "alice", Need(topic("x" * 1_000_000), frozenset((Action.PUB,))), "y" * 1_000_000
    )
    assert not found.allowed
    assert len(found.reason) < 1000
    assert not place.gate._decisions


async def test_what_is_remembered_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 5)
    alice = await place.gate.by_password(header("alice"), "")
    for k in range(8):
        place.gate.decision("alice", Need(topic(f"T{k}"), frozenset((Action.PUB,))), "")
        place.put(f"user{k}")
        await place.gate.by_password(header(f"user{k}"), "")
    assert len(place.gate._right) <= 5
    for k in range(8):
        place.gate.decision("alice", Need(topic(f"T{k}"), frozenset((Action.PUB,))), "")
        assert 1 <= len(place.gate._decisions) <= 5
    place.gate.check(alice, [PUB])


async def test_rights_are_those_of_the_tables_now(place: Place) -> None:
    alice = await place.gate.by_password(header("alice"), "")
    place.gate.check(alice, [PUB])
    with pytest.raises(duolog.NoPermission, match="super"):
        place.gate.check(alice, [FOR_SUPERS])
    place.tables.delete_rights("alice")
    with pytest.raises(duolog.NoPermission, match="no entries"):
        place.gate.check(alice, [PUB])
    place.put("alice", is_super=True)
    place.gate.check(alice, [PUB, FOR_SUPERS])
    place.tables = AccessTables()  # as a node that adopted other tables
    with pytest.raises(duolog.Unauthenticated):
        place.gate.check(alice, [PUB])


async def test_rights_that_cannot_be_read_are_none(place: Place) -> None:
    place.tables.put_rights({"subject": "User:alice", "policies": [{"policyType": "Newer"}]})
    alice = await place.gate.by_password(header("alice"), "")
    with pytest.raises(duolog.NoPermission):
        place.gate.check(alice, [PUB])


async def test_a_login_is_refused_by_the_tables_of_the_moment_when_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave that becomes the master while it compares does not refuse whom it knows by then."""
    place = Place(monkeypatch, User("root", is_super=True, password=HASHES["right"]))
    place.knows = False

    def elected(password: str, stored: str) -> bool:
        place.knows = True
        return is_password(password, stored)

    monkeypatch.setattr(module, "is_password", elected)
    assert (await place.gate.by_password(header("root"), "")).name == "root"
    place.put("carol", "other")

    def changed(password: str, stored: str) -> bool:
        if stored == HASHES["other"]:
            place.put("carol")
        return is_password(password, stored)

    monkeypatch.setattr(module, "is_password", changed)
    assert (await place.gate.by_password(header("carol"), "")).name == "carol"
    with pytest.raises(duolog.Unauthenticated, match="wrong"):
        await place.gate.by_password(header("carol", "neither"), "")


async def test_the_first_user_counts_while_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = User("root", is_super=True, password=HASHES["right"])
    place = Place(monkeypatch, first)
    root = await place.gate.by_password(header("root"), "")
    place.gate.check(root, [FOR_SUPERS])
    place.knows = False  # as a slave whose tables are empty
    with pytest.raises(duolog.Unauthenticated):
        place.gate.check(root, [])
    with pytest.raises(duolog.Unauthenticated):
        await place.gate.by_password(header("root"), "")
    place.knows = True
    place.put("alice")
    with pytest.raises(duolog.Unauthenticated):
        place.gate.check(root, [])
    with pytest.raises(duolog.Unauthenticated):
        await place.gate.by_password(header("root"), "")


def test_a_secret_is_opened_for_an_enabled_user_that_signs(place: Place) -> None:
    sealed = SEAL.close("alice", "right")
    assert place.gate.secret("alice") is None
    place.put("alice", secret=sealed)
    assert place.gate.secret("alice") == "right"
    place.put("bob", secret=sealed)
    assert place.gate.secret("bob") is None, "it is another user's"
    place.put("alice", secret=sealed, enabled=False)
    assert place.gate.secret("alice") is None
    assert place.gate.secret("nobody") is None


@pytest.mark.parametrize("words", ["", "Basic", "Basic !", "Bearer x", "Basic YQ==", "Basic /w=="])
async def test_what_names_no_user_is_refused(place: Place, words: str) -> None:
    with pytest.raises(duolog.Unauthenticated):
        await place.gate.by_password(words, "")
    assert place.compared == []


@pytest.fixture
def called_by_alice() -> Iterator[None]:
    before = PRINCIPAL.set(Principal("alice", ""))
    yield
    PRINCIPAL.reset(before)


@pytest.mark.usefixtures("called_by_alice")
def test_a_key_for_frames_is_for_one_connection_and_a_minute() -> None:
    now = 0.0
    keys = UserKeys(lambda: now)
    key, late = keys.issue(), keys.issue()
    assert keys.take(key) == (True, Principal("alice", ""))
    assert keys.take(key) == (False, None)
    now = KEY_SECONDS
    assert keys.take(late) == (False, None)
    first = keys.issue()
    for _ in range(KEYS_MAX):
        keys.issue()
    assert len(keys._issued) == KEYS_MAX
    assert keys.take(first) == (False, None)


def test_a_mark_tells_where_words_begin_and_end() -> None:
    vouching = Vouching(b"k" * 32, b"a test")
    mark = vouching.mark(["user", "al", "ice"])
    assert vouching.is_mark(mark, ["user", "al", "ice"])
    for other in (["user", "ali", "ce"], ["useral", "ice"], ["user", "al", "ice", ""], []):
        assert not vouching.is_mark(mark, other)
    assert not Vouching(b"l" * 32, b"a test").is_mark(mark, ["user", "al", "ice"])


def test_without_users_a_key_names_the_process() -> None:
    keys = SharedKey()
    assert keys.take(keys.issue()) == (True, None)
    assert keys.take(keys.issue()) == (True, None)
    assert SharedKey().take(keys.issue()) == (False, None)


async def test_a_token_takes_the_place_of_a_password_until_its_time(place: Place) -> None:
    def user(name: str) -> User:
        found = place.gate.user(name)
        assert found is not None
        return found

    place.put("bob")
    token = place.tokens.issue(user("alice"), 60)
    alice = await place.gate.by_password(header("alice", token), "")
    place.gate.check(alice, [PUB])
    assert place.compared == []
    other = AccessTokens(b"l" * 32, lambda: place.now_ms).issue(user("alice"), 60)
    longer = token.replace(".1060000.", ".2060000.")
    assert longer != token
    for wrong in (other, longer, token[:-1], token + "0", token.rpartition(".")[0], "x" + token):
        with pytest.raises(duolog.Unauthenticated):
            await place.gate.by_password(header("alice", wrong), "")
    with pytest.raises(duolog.Unauthenticated, match="bob"):
        await place.gate.by_password(header("bob", token), "")
    place.now_ms += 60_000
    with pytest.raises(duolog.Unauthenticated, match="expired"):
        place.gate.check(alice, [PUB])
    with pytest.raises(duolog.Unauthenticated, match="expired"):
        await place.gate.by_password(header("alice", token), "")


async def test_a_new_password_ends_the_tokens(place: Place) -> None:
    user = place.gate.user("alice")
    assert user is not None
    token = place.tokens.issue(user, 60)
    alice = await place.gate.by_password(header("alice", token), "")
    place.put("alice", "other")
    assert not place.gate.is_current(alice)
    with pytest.raises(duolog.Unauthenticated):
        await place.gate.by_password(header("alice", token), "")


async def test_each_caller_counts_by_what_it_proved(place: Place) -> None:
    """A password that now also signs, or no longer does, is the same password."""
    by_password = await place.gate.by_password(header("alice"), "")
    place.put("alice", secret=SEAL.close("alice", "right"))
    place.gate.check(by_password, [PUB])
    by_signature = place.gate.by_signature("alice", "")
    by_certificate = place.gate.by_certificate("alice", "")
    place.put("alice", secret=SEAL.close("alice", "another"))
    assert place.gate.is_current(by_password)
    assert not place.gate.is_current(by_signature)
    place.put("alice", "other")
    assert not place.gate.is_current(by_password)
    assert place.gate.is_current(by_certificate)
    with pytest.raises(duolog.Unauthenticated):
        place.gate.by_signature("alice", "")
    place.put("alice", enabled=False)
    assert not place.gate.is_current(by_certificate)
    with pytest.raises(duolog.Unauthenticated):
        place.gate.by_certificate("alice", "")
