"""Directories that are put back to what they were: told apart, resynced, and no loss."""

import errno

import pytest

from ha import masterevents
from ha.failover import Role
from ha.failoverevents import Changed, FoundOlder
from ha.frames import Refusal, Refuse, decode
from ha.groupstate import Replica
from ha.registry import Put, Transaction
from ha.slaveevents import Connected, Send
from ha.starts import Claim, Start
from store.clocks import MonoMs
from tests.ha.electorate import KEYS, Electorate, Voter, names
from tests.ha.pair import log_bytes, new_disk, put


@pytest.fixture
def three() -> Electorate:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and names(group.state) == set("abc"))
    group.run(1000)
    return group


def confirmed(group: Electorate, *bodies: bytes) -> int:
    """Put messages, and let all members hear that they are confirmed; the log's end."""
    leader = group.leader
    assert leader is not None
    assert leader.master is not None
    end = put(leader.master, *bodies).end_offset
    group.until(lambda: all(v.store.known_confirmed >= end for v in group.voters.values()))
    return end


def incarnation(voter: Voter) -> int:
    return voter.part.identity.incarnation


def test_what_a_row_of_the_registry_says_of_a_start() -> None:
    mine = Start(5, "mine")
    assert mine.against(None) is Claim.UNCLAIMED
    assert mine.against(Start(4, "other")) is Claim.UNCLAIMED
    assert mine.against(Start(5, "mine")) is Claim.CLAIMED
    assert mine.against(Start(5, "other")) is Claim.OLDER
    assert mine.against(Start(6, "mine")) is Claim.OLDER
    assert Start.from_bytes(mine.to_bytes()) == mine
    with pytest.raises(ValueError, match="cannot read"):
        Start.from_bytes(b"[]")


def test_restarts_of_the_true_directory_are_believed(three: Electorate) -> None:
    before = {name: incarnation(voter) for name, voter in three.voters.items()}
    for _ in range(3):
        for name in "abc":
            three.kill(name)
        for name in "abc":
            three.restart(name)
        three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
        three.run(1000)
    assert {name: incarnation(voter) for name, voter in three.voters.items()} == before


def test_a_start_that_the_registry_never_heard_of_leaves_a_gap_and_no_harm(
    three: Electorate,
) -> None:
    was = incarnation(three.voters["a"])
    three.kill("a")
    for _ in range(2):  # it dies before it reaches the registry
        three.restart("a")
        three.kill("a")
    again = three.restart("a")
    three.until(lambda: names(three.state) == set("abc"))
    assert incarnation(again) == was


def test_rows_of_incarnations_that_count_nowhere_go_with_the_next_start(
    three: Electorate,
) -> None:
    rows = {key for key in three.table.rows if key.startswith(KEYS.starts("b"))}
    assert rows == {KEYS.start(three.voters["b"].machine.me.replica)}
    value = three.table.rows[min(rows)].value
    other = KEYS.start(Replica("bb", 1))
    three.table.commit(
        Transaction((), (Put(KEYS.start(Replica("b", 7)), value), Put(other, value)))
    )
    three.kill("b")
    three.restart("b", new_disk(9), 99)
    three.run(500)
    kept = {key for key in three.table.rows if key.startswith(KEYS.starts("b"))}
    assert kept == rows | {KEYS.start(Replica("b", 99))}, "the member of the set is needed"
    assert other in three.table.rows
    three.until(lambda: Replica("b", 99) in three.state.sync_state_set)


def test_a_claim_whose_answer_is_lost_is_found_again(three: Electorate) -> None:
    was = incarnation(three.voters["b"])
    three.kill("b")
    again = three.restart("b")
    again.lose_replies = True
    three.run(1000)
    again.lose_replies = False
    three.until(lambda: names(three.state) == set("abc"))
    assert incarnation(again) == was


def test_a_copy_of_an_earlier_run_is_not_elected_though_it_is_alone(three: Electorate) -> None:
    victim = three.leader
    assert victim is not None
    copy, was = victim.disk.copied(), incarnation(victim)
    three.kill(victim.name)
    three.restart(victim.name)
    three.until(lambda: names(three.state) == set("abc") and three.leader is not None)
    three.run(1000)
    confirmed(three, b"1", b"2")
    for name in "abc":
        three.kill(name)
    older = three.restart(victim.name, copy)
    three.run(8000)
    assert older.machine.role is Role.STANDING
    assert three.leader is None
    assert incarnation(older) != was
    assert "older copy" in older.machine.notice
    others = [three.restart(name) for name in "abc" if name != victim.name]
    three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
    three.run(1000)
    assert older.machine.notice == ""
    assert all(log_bytes(v.store) == log_bytes(older.store) for v in others)


def test_a_copy_of_the_same_run_is_removed_by_a_member_that_knows_more(three: Electorate) -> None:
    victim = three.leader
    assert victim is not None
    copy = victim.disk.copied()
    end = confirmed(three, b"1", b"2")
    sure = log_bytes(victim.store)[:end]
    for name in "abc":
        three.kill(name)
    older = three.restart(victim.name, copy)
    three.until(lambda: three.leader is older)  # nothing tells it apart yet
    three.run(500)
    assert older.master is not None
    assert not older.master.epoch_confirmed
    others = [three.restart(name) for name in "abc" if name != victim.name]
    three.until(lambda: three.leader in others)
    assert victim.name not in names(three.state)
    three.until(lambda: names(three.state) == set("abc"))
    for voter in three.voters.values():
        assert log_bytes(voter.store)[:end] == sure
        slave = voter.slave
        assert slave is None or voter is older or slave.truncated_bytes == 0


def test_a_member_that_comes_back_with_less_does_not_count_as_before(three: Electorate) -> None:
    leader = three.leader
    assert leader is not None
    assert leader.master is not None
    name = next(name for name in "abc" if name != leader.name)
    copy, was = three.voters[name].disk.copied(), incarnation(three.voters[name])
    confirmed(three, b"1", b"2")
    three.kill(name)
    older = three.restart(name, copy)
    assert older.slave is not None
    hello = older.slave.step(Connected(), MonoMs(0))[0]
    assert isinstance(hello, Send)
    number = leader.master.connect(MonoMs(0))
    assert number is not None
    leader.master.step(masterevents.Received(number, hello.data), MonoMs(0))
    frame = leader.master.next_frame(number, MonoMs(0))
    assert frame is not None
    refuse = decode(frame)
    assert isinstance(refuse, Refuse)
    assert refuse.code is Refusal.OLDER_COPY
    three.until(lambda: incarnation(older) != was)
    three.until(lambda: Replica(name, incarnation(older)) in three.state.sync_state_set)
    assert Replica(name, was) not in three.state.sync_state_set
    assert three.leader is leader


def test_who_is_refused_and_does_not_count_anyway_stays_what_it_is(three: Electorate) -> None:
    leader = three.leader
    assert leader is not None
    voter = next(voter for voter in three.voters.values() if voter is not leader)
    was = voter.machine.me.replica
    left = three.state.changed(sync_state_set=three.state.sync_state_set - {was})
    three.table.commit(Transaction((), (Put(KEYS.state, left.to_bytes()),)))
    voter.step(Changed())
    voter.step(FoundOlder("it lacks a record"))
    voter.step(Changed())
    assert voter.machine.me.replica == was
    assert voter.machine.notice == ""


def test_an_older_copy_without_room_to_say_so_stands_until_there_is_some(
    three: Electorate, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = three.leader
    assert leader is not None
    voter = next(voter for voter in three.voters.values() if voter is not leader)
    assert voter.slave is not None
    was = incarnation(voter)

    def fail(number: int) -> None:
        raise OSError(number, "injected")

    monkeypatch.setattr(voter.slave, "renew", lambda _: fail(errno.ENOSPC))
    voter.step(FoundOlder("it lacks a record"))
    assert voter.machine.role is Role.STANDING
    assert "no disk space to record" in voter.machine.reason
    monkeypatch.setattr(voter.slave, "renew", lambda _: fail(errno.EIO))
    with pytest.raises(OSError, match="injected"):
        voter.step(Changed())
    monkeypatch.undo()
    voter.step(Changed())
    assert incarnation(voter) != was
    assert "it lacks a record" in voter.machine.notice


def test_who_learns_of_another_process_of_its_directory_counts_no_more(three: Electorate) -> None:
    leader = three.leader
    assert leader is not None
    was = leader.machine.me.replica
    row = Start(99, "the other process").to_bytes()
    three.table.commit(Transaction((), (Put(KEYS.start(was), row),)))
    three.run(100)
    assert leader.machine.role is not Role.LEADING
    assert incarnation(leader) != was.incarnation
    three.until(lambda: three.leader is not None and three.leader is not leader)
    three.until(lambda: names(three.state) == set("abc"))


def test_rows_of_incarnations_that_count_nowhere_do_not_pile_up(three: Electorate) -> None:
    for k in range(5):
        voter = three.voters["c"]
        row = Start(1000 + k, "another").to_bytes()
        three.table.commit(Transaction((), (Put(KEYS.start(voter.machine.me.replica), row),)))
        three.run(200)
        three.until(lambda: names(three.state) == set("abc"))
    assert sum(key.startswith(KEYS.starts("c")) for key in three.table.rows) <= 2
