"""Directories restored to an older copy: detected, resynced, and without loss."""

import errno
from dataclasses import replace

import pytest

from duolog_server.ha import masterevents
from duolog_server.ha.failover import Role
from duolog_server.ha.failoverevents import Changed, Commit, FoundOlder, Noted
from duolog_server.ha.frames import Refusal, Refuse, decode
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.localreplica import unfit
from duolog_server.ha.membership import note
from duolog_server.ha.registry import Put, Transaction
from duolog_server.ha.slaveevents import Connected, Send
from duolog_server.ha.starts import ANY_RUN, MARKS_MAX, Claim, Marks, Start
from duolog_server.store.clocks import MonoMs
from duolog_server.store.offsets import PhyOffset
from sim.disk import SimDisk
from tests.ha.electorate import KEYS, Electorate, Voter, names
from tests.ha.pair import log_bytes, new_disk, put
from tests.known import known


@pytest.fixture
def three() -> Electorate:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and names(group.state) == set("abc"))
    group.run(1000)
    return group


def confirmed(group: Electorate, *bodies: bytes) -> int:
    """Put messages, and let all members hear that they are confirmed; the log's end."""
    leader = group.led_by
    end = put(leader.mastership, *bodies).end_offset
    group.until(lambda: all(v.store.known_confirmed >= end for v in group.voters.values()))
    return end


def incarnation(voter: Voter) -> int:
    return voter.part.identity.incarnation


def is_trusted(group: Electorate, name: str, was: int) -> None:
    """A directory is started, and is the replica that it was."""
    again = group.restart(name)
    group.until(lambda: names(group.state) == set("abc"))
    assert incarnation(again) == was


def an_earlier_copy(group: Electorate) -> tuple[str, SimDisk, int]:
    """The leader's directory before its last start, and what more was confirmed; all are killed."""
    victim = group.led_by
    copy, was = victim.disk.copied(), incarnation(victim)
    group.kill(victim.name)
    group.restart(victim.name)
    group.until(lambda: names(group.state) == set("abc") and group.leader is not None)
    group.run(1000)
    confirmed(group, b"1", b"2")
    group.kill(*"abc")
    return victim.name, copy, was


def test_a_registry_entry_describes_a_start() -> None:
    mine, marks = Start(5, "mine"), (Start(2, "two"), Start(4, "four"))
    assert mine.against(None, marks) is Claim.UNCLAIMED
    assert mine.against(mine, marks) is Claim.CLAIMED
    assert mine.against(mine, ()) is Claim.CLAIMED
    for mark in marks:
        assert mine.against(mark, marks) is Claim.UNCLAIMED
    for stranger in (Start(2, "x"), Start(3, "x"), Start(4, "x"), Start(5, "x"), Start(6, "x")):
        assert mine.against(stranger, marks) is Claim.OLDER
    assert mine.against(Start(1, "x"), marks) is Claim.UNCLAIMED, "the registry fell back"
    assert mine.against(Start(1, "x"), ()) is Claim.OLDER
    assert Start.from_bytes(mine.to_bytes()) == mine
    with pytest.raises(ValueError, match="cannot read"):
        Start.from_bytes(b"[]")


def test_all_starts_of_an_earlier_version_are_known_and_no_later_ones() -> None:
    mine, marks = Start(9, "mine"), (Start(4, ANY_RUN),)
    for number in (1, 4):
        assert mine.against(Start(number, "x"), marks) is Claim.UNCLAIMED
    for number in (5, 9, 10):
        assert mine.against(Start(number, "x"), marks) is Claim.OLDER


def test_marks_begin_with_what_the_registry_has_had_and_are_bounded() -> None:
    first, none = Start(1, "one"), Start(0, ANY_RUN)
    assert first.marked(None, ()) == (none, first)
    assert first.against(Start(1, "another"), (none, first)) is Claim.OLDER
    second = Start(2, "two")
    both = second.marked(None, (none, first))
    assert both == (none, first, second), "the first claim may still be made"
    third = Start(3, "three")
    assert third.marked(first, both) == (first, second, third)
    assert third.marked(second, both) == (second, third), "the first claim was made before it"
    assert third.marked(Start(0, "x"), both) == (*both, third), "of a registry that fell back"
    marks: Marks = both
    for number in range(3, 30):
        marks = Start(number, f"{number}").marked(None, marks)
    assert len(marks) == MARKS_MAX
    assert marks[0] == none
    assert [mark.number for mark in marks[1:]] == list(range(30 - MARKS_MAX + 1, 30))


def test_restarts_of_the_true_directory_are_trusted(three: Electorate) -> None:
    before = {name: incarnation(voter) for name, voter in three.voters.items()}
    for _ in range(3):
        three.kill(*"abc")
        for name in "abc":
            three.restart(name)
        three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
        three.run(1000)
    assert {name: incarnation(voter) for name, voter in three.voters.items()} == before


def test_a_start_that_the_registry_never_heard_of_leaves_a_gap_only(three: Electorate) -> None:
    was = incarnation(three.voters["a"])
    three.kill("a")
    for _ in range(2):  # it dies before it reaches the registry
        three.restart("a")
        three.kill("a")
    is_trusted(three, "a", was)


def test_entries_of_unused_incarnations_are_removed_at_the_next_start(three: Electorate) -> None:
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
    name, copy, was = an_earlier_copy(three)
    older = three.restart(name, copy)
    three.run(8000)
    assert older.machine.role is Role.STANDING
    assert three.leader is None
    assert incarnation(older) != was
    assert "older copy" in older.machine.notice
    others = [three.restart(other.name) for other in three.others(older)]
    three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
    three.run(1000)
    assert older.machine.notice == ""
    assert all(log_bytes(v.store) == log_bytes(older.store) for v in others)


def start_without_the_registry(group: Electorate, name: str, times: int) -> Voter:
    """Start a directory again and again while the registry is away; at last it is back."""
    for _ in range(times):
        voter = group.restart(name)
        voter.cut_off = True
        group.run(500)
        group.kill(name)
    return group.restart(name)


@pytest.mark.parametrize("times", [1, 4, 40])
def test_a_copy_of_an_earlier_run_that_counts_up_without_the_registry_is_still_older(
    three: Electorate, times: int
) -> None:
    name, copy, was = an_earlier_copy(three)
    three.voters[name].disk = copy
    older = start_without_the_registry(three, name, times)
    three.run(8000)
    assert three.leader is None
    assert incarnation(older) != was
    for other in three.others(older):
        three.restart(other.name)
    three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
    assert all(log_bytes(v.store) == log_bytes(older.store) for v in three.voters.values())


def test_a_copy_made_before_its_process_reached_the_registry_is_older(three: Electorate) -> None:
    name = next(name for name in "abc" if three.voters[name] is not three.leader)
    was = incarnation(three.voters[name])
    three.kill(name)
    again = three.restart(name)
    copy = again.disk.copied()
    three.until(lambda: names(three.state) == set("abc"))
    three.run(500)
    confirmed(three, b"1", b"2")
    for other in "abc":
        three.kill(other)
    three.run(4000)  # all leases end
    three.voters[name].disk = copy
    older = start_without_the_registry(three, name, 2)
    three.run(8000)
    assert three.leader is None
    assert incarnation(older) != was


def test_copies_of_two_directories_put_back_in_turn_are_both_older(three: Electorate) -> None:
    copies = {name: three.voters[name].disk.copied() for name in "ab"}
    before = {name: incarnation(three.voters[name]) for name in "ab"}
    for name in "ab":
        three.kill(name)
        three.restart(name)
        three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
        three.run(1000)
    confirmed(three, b"1", b"2")
    sure = log_bytes(three.voters["c"].store)
    three.kill(*"abc")
    for name, copy in copies.items():
        three.voters[name].disk = copy
        start_without_the_registry(three, name, 3)
    three.run(8000)
    assert three.leader is None
    assert all(incarnation(three.voters[name]) != before[name] for name in "ab")
    three.restart("c")
    three.until(lambda: three.leader is not None and names(three.state) == set("abc"))
    three.run(1000)
    assert all(log_bytes(v.store).startswith(sure) for v in three.voters.values())


def test_a_true_directory_is_trusted_however_often_the_registry_is_mute(three: Electorate) -> None:
    was = incarnation(three.voters["b"])
    three.kill("b")
    start_without_the_registry(three, "b", 10)
    three.kill("b")
    for _ in range(3):  # each claims its start, and dies before it hears of it
        again = three.restart("b")
        again.lose_replies = True
        three.run(1000)
        three.kill("b")
    is_trusted(three, "b", was)


def test_a_directory_whose_late_claim_comes_after_its_next_start_is_true(three: Electorate) -> None:
    """Its mark was written before it was sent; the claim that came in between fails."""
    was = incarnation(three.voters["b"])
    three.kill("b")
    late = three.restart("b")
    late.lose_requests = True
    three.run(1000)
    claim = next(said for said in late.said if isinstance(said, Commit)).transaction
    (start,) = [change for change in claim.changes if isinstance(change, Put)]
    three.kill("b")
    again = three.restart("b")
    assert three.table.commit(claim) is not None
    three.until(lambda: names(three.state) == set("abc"))
    three.run(1000)
    assert incarnation(again) == was
    assert three.table.rows[start.key].value == again.machine.provenance.start.to_bytes()


def test_a_registry_that_forgot_the_last_starts_makes_no_older_copies(three: Electorate) -> None:
    key = KEYS.start(three.voters["b"].machine.me.replica)
    was, rows = incarnation(three.voters["b"]), [three.table.rows[key].value]
    for _ in range(3):
        three.kill("b")
        three.restart("b")
        three.until(lambda: names(three.state) == set("abc"))
        three.run(1000)
        rows.append(three.table.rows[key].value)
    assert len(set(rows)) == 4
    for row in rows:
        three.kill("b")
        three.put(key, row)
        again = three.restart("b")
        three.until(lambda: names(three.state) == set("abc"))
        three.run(1000)
        assert incarnation(again) == was
    three.table.commit(Transaction((), (Put(key, rows[0]),)))  # while it runs
    three.run(1000)
    assert incarnation(again) == was
    assert three.table.rows[key].value not in rows


def test_a_start_is_claimed_once_its_mark_is_on_the_disk(three: Electorate) -> None:
    three.kill("b")
    again = three.restart("b")
    again.slow_disk = True
    three.run(2000)
    assert not [said for said in again.said if isinstance(said, Commit)]
    (noted,) = again.late_notes
    assert again.machine.provenance.start in noted.marks
    again.slow_disk = False
    again.step(Noted(note(again.disk, noted)))
    assert [said for said in again.said if isinstance(said, Commit)]


def test_a_full_disk_leaves_a_start_unclaimed_until_it_has_room(three: Electorate) -> None:
    three.kill("b")
    again = three.restart("b")
    again.slow_disk = True
    three.run(500)
    for _ in range(2):
        again.step(Noted(None))
        assert not [said for said in again.said if isinstance(said, Commit)]
        three.run(2000)
        assert len(again.late_notes) > 1, "it is noted again at a later look"
    again.slow_disk = False
    again.step(Noted(note(again.disk, again.late_notes[-1])))
    assert [said for said in again.said if isinstance(said, Commit)]


def test_a_copy_of_the_same_run_is_removed_by_a_member_that_knows_more(three: Electorate) -> None:
    victim = three.led_by
    copy = victim.disk.copied()
    end = confirmed(three, b"1", b"2")
    sure = log_bytes(victim.store)[:end]
    three.kill(*"abc")
    older = three.restart(victim.name, copy)
    three.until(lambda: three.leader is older)  # nothing tells it apart yet
    three.run(500)
    assert not older.mastership.epoch_confirmed
    others = [three.restart(name) for name in "abc" if name != victim.name]
    three.until(lambda: three.leader in others)
    assert victim.name not in names(three.state)
    three.until(lambda: names(three.state) == set("abc"))
    for voter in three.voters.values():
        assert log_bytes(voter.store)[:end] == sure
        slave = voter.slave
        assert slave is None or voter is older or slave.truncated_bytes == 0


def test_a_member_that_comes_back_with_less_does_not_count_as_before(three: Electorate) -> None:
    leader = three.led_by
    name = next(name for name in "abc" if name != leader.name)
    copy, was = three.voters[name].disk.copied(), incarnation(three.voters[name])
    confirmed(three, b"1", b"2")
    three.kill(name)
    older = three.restart(name, copy)
    assert older.slave is not None
    hello = older.slave.step(Connected(), MonoMs(0))[0]
    assert isinstance(hello, Send)
    number = known(leader.mastership.connect(MonoMs(0)))
    leader.mastership.step(masterevents.Received(number, hello.data), MonoMs(0))
    frame = known(leader.mastership.next_frame(number, MonoMs(0)))
    refuse = decode(frame)
    assert isinstance(refuse, Refuse)
    assert refuse.code is Refusal.OLDER_COPY
    three.until(lambda: incarnation(older) != was)
    three.until(lambda: Replica(name, incarnation(older)) in three.state.sync_state_set)
    assert Replica(name, was) not in three.state.sync_state_set
    assert three.leader is leader


def test_a_refused_replica_gets_a_new_incarnation_though_no_set_has_it(three: Electorate) -> None:
    """Its master has proposed a set with this replica: that change may still be made."""
    leader = three.led_by
    voter = three.others(leader)[0]
    was = voter.machine.me.replica
    left = three.state.changed(sync_state_set=three.state.sync_state_set - {was})
    three.put(KEYS.state, left.to_bytes())
    voter.step(Changed())
    voter.step(FoundOlder("it lacks a record"))
    voter.step(Changed())
    assert incarnation(voter) != was.incarnation
    assert "it lacks a record" in voter.machine.notice


def test_a_member_with_a_damaged_log_does_not_count_while_a_new_master_repairs_it(
    three: Electorate,
) -> None:
    """The new master knows of no confirmed bytes, so it cannot tell what is missing."""
    leader = three.led_by
    next_one, damaged = (three.voters[name] for name in "abc" if name != leader.name)
    end = 0
    while len(leader.store.log.queue.files) < 3:
        end = confirmed(three, b"x" * 900)
    sure = log_bytes(leader.store)[:end]
    next_one.store.checkpoint.confirm_phy_offset = 0
    next_one.store.checkpoint.note.lower_to(0)
    three.kill(*"abc")
    three.run(4000)  # all leases end
    disk = damaged.disk
    disk.remove(sorted(f"commitlog/{name}" for name in disk.list("commitlog"))[1])
    was = damaged.machine.me.replica
    again, leads = three.restart(damaged.name), three.restart(next_one.name)
    again.unfit = "damaged"
    three.until(lambda: three.leader is leads)
    while again.store.log.corrupt_ranges or again.store.log.max_offset < end:
        counts = again.machine.me.replica in three.state.sync_state_set
        assert again.store.log.corrupt_ranges or not counts, "repaired in part, and counted on"
        three.run(25)
    three.until(lambda: again.machine.me.replica in three.state.sync_state_set)
    assert again.machine.me.replica != was
    assert log_bytes(again.store)[:end] == sure
    assert names(three.state) >= {damaged.name, next_one.name}


@pytest.mark.parametrize("confirmed_there", [True, False])
def test_damage_keeps_a_node_from_being_elected(three: Electorate, confirmed_there: bool) -> None:
    """Also behind all that it knows to be confirmed: it may have acknowledged more."""
    end = confirmed(three, b"x" * 900, b"y" * 900, b"z" * 900)
    victim = three.others(three.led_by)[0]
    assert victim.store.checkpoint.note.confirmed == end
    if not confirmed_there:
        victim.store.checkpoint.confirm_phy_offset = 0
        victim.store.checkpoint.note.lower_to(PhyOffset(0))
        victim.store.checkpoint.flush()
    three.kill(victim.name)
    path = next(path for path in victim.disk._names if path.startswith("commitlog/"))
    victim.disk._names[path].seen[1024:1536] = 0
    back = three.restart(victim.name)
    assert unfit(back.store) == "1 corrupt ranges in its log"


def test_an_older_copy_on_a_full_disk_stands_until_there_is_room(
    three: Electorate, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = three.led_by
    voter = three.others(leader)[0]
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


def test_a_master_that_learns_of_another_process_of_its_disk_steps_down(three: Electorate) -> None:
    leader = three.led_by
    was = leader.machine.me.replica
    row = Start(99, "the other process").to_bytes()
    three.put(KEYS.start(was), row)
    three.run(100)
    assert leader.machine.role is not Role.LEADING
    assert incarnation(leader) != was.incarnation
    three.until(lambda: three.leader is not None and three.leader is not leader)
    three.until(lambda: names(three.state) == set("abc"))


def test_of_two_processes_on_copies_of_a_directory_the_later_one_stays(three: Electorate) -> None:
    """They do not take it from each other in turn, which would change the set endlessly."""
    first = three.others(three.led_by)[0]
    second = three.voters["copy"] = Voter(three, first.name, first.disk.copied())
    second.machine.me = replace(second.machine.me, endpoint="else:1", ha_endpoint="else:2")
    three.run(3000)
    version = three.state.version
    three.run(5000)
    assert three.state.version == version, "nothing changes any more"
    assert names(three.state) == set("abc")
    assert second.machine.me.replica in three.state.sync_state_set
    assert first.machine.role is Role.STANDING
    assert f"another process is registered as node {first.name!r}, at else:1" in (
        first.machine.reason
    )
    three.kill("copy")
    three.until(lambda: first.machine.me.replica in three.state.sync_state_set)


def test_entries_of_unused_incarnations_do_not_accumulate(three: Electorate) -> None:
    for k in range(5):
        voter = three.voters["c"]
        row = Start(1000 + k, "another").to_bytes()
        three.put(KEYS.start(voter.machine.me.replica), row)
        three.run(200)
        three.until(lambda: names(three.state) == set("abc"))
    assert sum(key.startswith(KEYS.starts("c")) for key in three.table.rows) <= 2
