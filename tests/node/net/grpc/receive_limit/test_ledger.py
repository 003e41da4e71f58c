"""The ledger of bytes that came: what is unfinished, and which connections end."""

import pytest

from duolog_server.node.net.grpc.receive_limit import ledger as module
from duolog_server.node.net.grpc.receive_limit.ledger import Ledger, Name, name_of, size_of
from duolog_server.store.clocks import MonoMs

MIB = 1 << 20
MOST, LONGEST = 8 * MIB, 16 * MIB
OWN = module.OWN_BYTES
LOOKS = module.SILENT_MS // 50  # of 50 ms, after which a connection may end


OTHER = ("10.0.0.2", 1)


def name(number: int) -> Name:
    return "10.0.0.1", number


class Looked(Ledger):
    """A ledger, and the time. is_calling: whether another client begins calls between looks."""

    now_ms = 1_000_000
    is_calling = False

    def see(
        self, received: dict[Name, int], *, every: bool = True, after_ms: int = 50
    ) -> set[Name]:
        """Look, so much later."""
        self.now_ms += after_ms
        if self.is_calling:
            self.began(OTHER, 0)
        self.look(received, MonoMs(self.now_ms))
        return self.judge(every, MonoMs(self.now_ms))


def called(*names: Name) -> Looked:
    """A ledger in which these have begun a call, of which no message came."""
    made = Looked(MOST, LONGEST)
    for one in names:
        made.began(one, 0)
    return made


def known(*names: Name) -> Looked:
    """A ledger in which these have sent a message."""
    made = called(*names)
    for one in names:
        made.known(one, 1)
    made.see(dict.fromkeys(names, 1))
    return made


def looks(ledger: Looked, received: dict[Name, int], count: int = LOOKS) -> set[Name]:
    """Look so many times at the same; which connections shall end."""
    found: set[Name] = set()
    for _ in range(count):
        found |= ledger.see(received)
    return found


def test_what_is_known_in_however_many_parts_is_not_unfinished() -> None:
    ledger = Looked(MOST, LONGEST)
    total = 0
    for _ in range(100):
        total += MIB
        ledger.known(name(1), MIB)
        assert ledger.see({name(1): total}) == set()
        assert ledger.unfinished == 0
    ledger, whole = called(name(1), name(2), name(3)), {name(1): MIB, name(2): MIB, name(3): MIB}
    for one, size in whole.items():
        ledger.look({one: size}, MonoMs(ledger.now_ms))
        ledger.known(name(1), MIB)  # of which the bytes come before the next look
    assert ledger.judge(True, MonoMs(ledger.now_ms)) == set()
    assert ledger.unfinished == 3 * (MIB - OWN)
    assert ledger.see({**whole, name(1): 4 * MIB}) == set()
    assert ledger.unfinished == 3 * (MIB - OWN)


def test_the_largest_end_first_and_those_with_far_too_much_whatever_arrives() -> None:
    ledger = known(name(1), name(2), name(3))
    received = {name(1): 3 * MIB, name(2): 5 * MIB, name(3): 4 * MIB}
    assert looks(ledger, received, LOOKS - 1) == set()
    assert ledger.unfinished == 12 * MIB - 3 * OWN - 3
    assert looks(ledger, received, 1) == {name(2)}
    assert looks(ledger, {one: received[one] for one in (name(1), name(3))}) == set()
    ledger = known(name(1))
    most = MOST + LONGEST
    for number in (1, 2):
        ledger.known(name(1), 100 * MIB)
        assert ledger.see({name(1): number * 100 * MIB + most}) == set()
    ledger.known(name(1), 100 * MIB)
    assert ledger.see({name(1): 300 * MIB + most + OWN + 10}) == {name(1)}


def test_a_connection_whose_messages_arrive_goes_on_beside_others() -> None:
    busy, stalled = name(1), name(2)
    ledger = known(stalled)
    ended: list[set[Name]] = []
    for number in range(1, 20):
        ledger.known(busy, MIB)
        received = {busy: (number + 9) * MIB, stalled: 2 * MIB}
        if {stalled} in ended:
            del received[stalled]
        ended.append(ledger.see(received))
    assert [found for found in ended if found] == [{stalled}]
    assert ended.index({stalled}) == LOOKS - 1
    large, other = name(1), name(2)
    ledger = known(large, other)
    found: set[Name] = set()
    for _ in range(LOOKS):
        ledger.known(large, 300)
        found = ledger.see({large: 8 * MIB, other: 2 * MIB})
    assert found == {large}


def test_little_that_stays_pings_and_one_long_message_end_nobody() -> None:
    ledger = known(name(1), name(2))
    received = {name(1): MIB // 2, name(2): 2 * MIB}
    looks(ledger, received, 2)
    before = ledger.unfinished
    ledger.see(received, after_ms=module.FORGOTTEN_MS - 100)
    assert ledger.unfinished == before
    ledger.see(received, after_ms=100)
    assert 0 < ledger.unfinished == 2 * MIB - OWN - 1
    # One that subscribes sends nothing else for days, and no call of it waits for a message.
    ledger, sent = known(name(1)), 1
    ledger.over(name(1), gave_up=False)
    for _ in range(50_000):  # a ping each 5 s, within TLS
        sent += 17 + 29
        assert ledger.see({name(1): sent}, after_ms=5_000) == set()
    assert ledger.see({name(1): sent + MIB}) == set()
    assert looks(ledger, {name(1): sent + MIB}, 200) == {name(1)}, "what is none"
    ledger = called(name(1), name(2))
    assert looks(ledger, {name(1): LONGEST, name(2): 2 * OWN}, 50) == set()
    assert looks(ledger, {name(1): LONGEST + OWN + 1, name(2): OWN}) == {name(1)}


def test_those_of_which_no_message_ever_arrived_have_a_part_and_end_sooner() -> None:
    part = MOST // module.STRANGERS_PART
    ledger = known(name(1))
    for number in (2, 3):
        ledger.began(name(number), 0)
    received = {name(1): 4 * MIB, name(2): part // 2 + OWN, name(3): part // 2 + OWN}
    assert looks(ledger, received, 50) == set()
    received[name(3)] += 1
    assert looks(ledger, received, 1) == {name(3)}
    ledger.began(name(4), 0)
    received[name(4)] = received.pop(name(3))
    assert ledger.see(received) == {name(2)}
    received = {name(1): 4 * MIB, name(4): part + OWN + 1}
    assert ledger.see(received, after_ms=module.STRANGERS_SILENT_MS - 1) == set()
    assert ledger.see(received, after_ms=1) == {name(4)}
    part = MOST // module.STRANGERS_PART
    ledger = called(name(1), name(2))
    received = {name(1): 2 * part, name(2): 2 * part + 1}
    ledger.is_calling = True
    assert looks(ledger, received, LOOKS) == set()
    assert ledger.see(received) == {name(2), name(1)}
    ledger = called(name(1), name(2))
    ledger.is_calling = True
    assert ledger.see(received) == set()
    ledger.is_calling = False  # there is nothing left to be taken
    assert ledger.see(received, after_ms=module.STRANGERS_SILENT_MS - 1) == set()
    assert ledger.see(received, after_ms=1) == {name(2), name(1)}


@pytest.mark.parametrize("is_calling", [False, True])
def test_a_connection_that_says_much_and_calls_nothing_ends_however_much_there_is_room(
    is_calling: bool,
) -> None:
    most_ms = module.UNCALLED_MS if is_calling else module.STRANGERS_SILENT_MS
    most = OWN + module.UNCALLED_BYTES
    ledger = called(name(3))
    received = {name(1): most, name(2): most + 1, name(3): most + 2}
    ledger.see({})
    ledger.is_calling = is_calling
    assert ledger.see(received, after_ms=module.STRANGERS_SILENT_MS) == set()
    assert ledger.see(received, after_ms=most_ms - 1) == set()
    assert ledger.see(received, after_ms=1) == {name(2)}
    ledger.began(name(2), 0)
    assert looks(ledger, received, 50 + module.UNCALLED_MS // 50) == set()


def test_a_connection_ends_after_some_looks_and_some_time() -> None:
    ledger = known(name(1), name(2))
    received = {name(1): 5 * MIB, name(2): 5 * MIB}
    assert ledger.see(received, after_ms=60_000) == set()  # its messages may not have been served
    assert len(ledger.see(received, after_ms=0)) == 1
    ledger = known(name(1), name(2))
    received = {name(1): 5 * MIB, name(2): 5 * MIB}
    for _ in range(module.SILENT_MS - 1):
        assert ledger.see(received, after_ms=1) == set()
    assert len(ledger.see(received, after_ms=1)) == 1
    ledger = Looked(MOST, LONGEST)
    ledger.is_calling = True
    assert looks(ledger, {name(1): OWN}, 2 * module.UNCALLED_MS // 50) == set()
    received = {name(1): OWN + module.UNCALLED_BYTES + 1}
    assert looks(ledger, received, module.UNCALLED_MS // 50 - 1) == set()
    assert ledger.see(received) == {name(1)}


def test_what_is_known_belongs_to_its_connection_and_goes_with_it() -> None:
    ledger = Looked(MOST, LONGEST)
    assert looks(ledger, {name(number): OWN for number in range(1000)}) == set()
    assert ledger.unfinished == 0
    ledger = Looked(MOST, LONGEST)
    ledger.known(name(1), 100 * MIB)
    ledger.see({name(1): MIB})
    assert looks(ledger, {name(1): MIB + LONGEST + OWN + 1}) == {name(1)}
    ledger = Looked(MOST, LONGEST)
    ledger.known(name(1), 50 * MIB)
    for _ in range(module.UNSEEN_LOOKS - 1):
        ledger.see({})
    for _ in range(10):
        ledger.see({}, every=False)  # of those that were known before
    ledger.see({name(1): 50 * MIB})
    assert ledger.unfinished == 0
    ledger = Looked(MOST, LONGEST)
    for number in range(100):
        ledger.known(name(number), 10)
        ledger.see({name(number): 2 * MIB})
    ledger.known(name(1000), 10)
    looks(ledger, {}, module.UNSEEN_LOOKS)
    assert ledger._connections == {}
    assert ledger.unfinished == 0


def test_headers_without_an_end_are_those_before_or_behind_a_call_and_no_others() -> None:
    ledger = called(name(1), name(2), name(3))
    ledger.over(name(1), gave_up=False)
    ledger.over(name(1), gave_up=False)  # of a call that was forgotten
    ledger.began(name(3), 0)
    ledger.over(name(3), gave_up=False)  # of two: the other one waits
    most = OWN + module.UNCALLED_BYTES
    received = dict.fromkeys((name(1), name(2), name(3)), most)
    assert looks(ledger, received) == set()
    received = dict.fromkeys(received, most + 1)
    assert looks(ledger, received, 1) == {name(1)}
    del received[name(1)]
    assert looks(ledger, received, 50 + module.UNCALLED_MS // 50) == set()
    ledger, most = called(name(1)), OWN + module.UNCALLED_BYTES
    received = {name(1): 3 * MIB}
    ledger.see(received)
    ledger.over(name(1), gave_up=True)
    received[name(1)] += MIB  # on its way as it was
    assert looks(ledger, received, 50 + module.UNCALLED_MS // 50) == set()
    received[name(1)] += most
    assert looks(ledger, received) == set()
    received[name(1)] += 1
    assert looks(ledger, received, 1) == {name(1)}
    # Of very many calls a little of each may be: what is known of them is an estimate.
    ledger, size = Looked(MOST, LONGEST), 0
    for _ in range(20):
        size += module.UNCALLED_BYTES
        ledger.began(name(1), 0)
        ledger.over(name(1), gave_up=False)
        assert looks(ledger, {name(1): size}) == set()
    assert looks(ledger, {name(1): size + OWN + 1}) == {name(1)}


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
