"""The ledger of bytes that came: what is unfinished, and which connections end."""

import pytest

from node.unfinished import ledger as module
from node.unfinished.ledger import Ledger, Name, name_of, size_of

MIB = 1 << 20
MOST, LONGEST = 8 * MIB, 16 * MIB
OWN = module.OWN_BYTES


def name(number: int) -> Name:
    return "10.0.0.1", number


def known(*names: Name) -> Ledger:
    """A ledger in which these have sent a message."""
    made = Ledger(MOST, LONGEST)
    for one in names:
        made.known(one, 1)
    made.look(dict.fromkeys(names, 1), True)
    return made


def looks(ledger: Ledger, received: dict[Name, int], count: int = module.LOOKS) -> list[Name]:
    """Look so many times at the same; what the last look says."""
    found: list[Name] = []
    for _ in range(count):
        found = ledger.look(received, True)
    return found


def test_what_is_known_is_not_unfinished() -> None:
    ledger = Ledger(MOST, LONGEST)
    total = 0
    for _ in range(100):
        total += MIB
        ledger.known(name(1), MIB)
        assert ledger.look({name(1): total}, True) == []
        assert ledger.unfinished == 0


def test_connections_of_which_no_message_arrives_end_the_largest_first() -> None:
    ledger = known(name(1), name(2), name(3))
    received = {name(1): 3 * MIB, name(2): 5 * MIB, name(3): 4 * MIB}
    assert looks(ledger, received, module.LOOKS - 1) == []
    assert ledger.unfinished == 12 * MIB - 3 * OWN - 3
    assert looks(ledger, received, 1) == [name(2)]
    assert looks(ledger, {one: received[one] for one in (name(1), name(3))}) == []


def test_a_connection_whose_messages_arrive_goes_on_beside_others() -> None:
    busy, stalled = name(1), name(2)
    ledger = known(stalled)
    for number in range(1, 20):
        ledger.known(busy, MIB)
        found = ledger.look({busy: (number + 9) * MIB, stalled: 2 * MIB}, True)
        assert found == ([stalled] if number >= module.LOOKS else [])


def test_one_alone_may_have_as_much_as_the_longest_message() -> None:
    ledger = Ledger(MOST, LONGEST)
    assert looks(ledger, {name(1): LONGEST, name(2): OWN}, 50) == []
    assert looks(ledger, {name(1): LONGEST + OWN + 1, name(2): OWN}) == [name(1)]


def test_those_of_which_no_message_ever_arrived_have_a_part_and_end_sooner() -> None:
    part = MOST // module.STRANGERS_PART
    ledger = known(name(1))
    received = {name(1): 2 * MIB, name(2): part // 2 + OWN, name(3): part // 2 + OWN}
    assert looks(ledger, received, 50) == []
    received[name(3)] += 1
    assert looks(ledger, received, 1) == [name(3)]
    received[name(4)] = received.pop(name(3))
    assert looks(ledger, received, module.STRANGERS_LOOKS - 1) == [name(2)]


def test_what_a_connection_has_of_its_own_does_not_count() -> None:
    ledger = Ledger(MOST, LONGEST)
    assert looks(ledger, {name(number): OWN for number in range(1000)}) == []
    assert ledger.unfinished == 0


def test_what_is_known_too_early_or_too_well_is_no_credit() -> None:
    ledger = Ledger(MOST, LONGEST)
    ledger.known(name(1), 100 * MIB)
    ledger.look({name(1): MIB}, True)
    assert looks(ledger, {name(1): MIB + LONGEST + OWN + 1}) == [name(1)]


def test_a_connection_that_is_heard_of_before_it_is_seen_is_known_when_it_is() -> None:
    ledger = Ledger(MOST, LONGEST)
    ledger.known(name(1), 50 * MIB)
    for _ in range(module.LOOKS - 1):
        ledger.look({}, True)
    for _ in range(10):
        ledger.look({}, False)  # of those that were known before
    ledger.look({name(1): 50 * MIB}, True)
    assert ledger.unfinished == 0


def test_connections_that_are_gone_are_forgotten() -> None:
    ledger = Ledger(MOST, LONGEST)
    for number in range(100):
        ledger.known(name(number), 10)
        ledger.look({name(number): 2 * MIB}, True)
    ledger.known(name(1000), 10)
    looks(ledger, {})
    assert ledger._connections == {}
    assert ledger.unfinished == 0


@pytest.mark.parametrize("size", [0, 1, 16_000, 10 * MIB])
def test_a_message_is_taken_for_no_less_than_it_takes_on_its_way(size: int) -> None:
    frames = size // 16_384 + 1  # of HTTP/2, and records of TLS
    assert size_of(size) >= 5 + size + frames * (9 + 29)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")],
)
def test_a_client_has_one_name_however_its_address_is_written(address: str, expected: str) -> None:
    assert name_of(address, 5) == (expected, 5)
