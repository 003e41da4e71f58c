"""The failover machine: elections, leases, hand-overs, and a registry that forgot."""

from dataclasses import replace

import pytest

from duolog_server.ha import failover, masterevents
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import HAND_OVER_MS, PAUSE_MS, Role
from duolog_server.ha.failoverevents import (
    Answer,
    AskLease,
    Changed,
    Commit,
    Committed,
    Contradicted,
    DropLease,
    ElectUnclean,
    Follow,
    HandOver,
    Instruct,
    Lead,
    Leased,
    LeaseLost,
    Note,
    Noted,
    Observe,
    Observed,
    Tick,
    Uncertain,
    Wake,
)
from duolog_server.ha.groupstate import GroupState, View
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.membership import PATH, Membership, load, note, save
from duolog_server.ha.registry import Check, Delete, Put, RegistryTable, Transaction
from duolog_server.ha.succession import RANK_MS, SUCCESSOR_MS, UNREACHED_MS
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.status import PutMessageStatus
from sim.later import Later
from sim.platter import membership_on
from tests.ha.electorate import KEYS, Electorate, Voter, names, written
from tests.ha.pair import log_bytes, new_disk, put
from tests.known import known


@pytest.fixture
def three() -> Electorate:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and names(group.state) == {"a", "b", "c"})
    return group


@pytest.fixture
def leader(three: Electorate) -> Voter:
    """Who leads at first."""
    return three.led_by


def write_state(group: Electorate, state: GroupState) -> None:
    group.put(KEYS.state, state.to_bytes())


def test_a_group_begins_with_one_master_and_grows_to_all_of_its_nodes(three: Electorate) -> None:
    leader = three.led_by
    assert leader.mastership.epoch == leader.machine.led_epoch == three.state.epoch == 1
    assert leader.machine.elections == 1
    assert [v.machine.role for v in three.voters.values()].count(Role.LEADING) == 1
    assert three.state.opened


def test_a_node_that_could_not_read_anything_yet_writes_nothing() -> None:
    group = Electorate("a")
    voter, machine = group.voters["a"], group.voters["a"].machine
    assert (machine.role, machine.reason) == (
        Role.STANDING,
        "this node does not know the group's state yet",
    )
    assert (machine.notice, machine.view) == ("", View())
    numbers = (machine.lease, machine.deadline_ms, machine.elections, machine.last_epoch)
    assert numbers == (0, 0, 0, 0)
    assert machine.membership == load(voter.disk) == Membership("", 0, 1)
    group.now = 0
    voter.cut_off = True
    voter.step(Tick())
    assert voter.said == [Observe(), AskLease()]
    voter.cut_off = False
    voter.renew()
    assert machine.lease
    assert voter.said == [Observe(), AskLease()]
    voter.step(Changed())
    assert voter.said[2] == Observe()
    assert isinstance(voter.said[3], Note)
    assert voter.said[3].membership.starts == 1
    assert isinstance(voter.said[4], Commit)


def test_no_put_is_taken_before_a_second_replica_is_in_sync() -> None:
    group = Electorate("a", "b")
    group.down.add("b")
    group.until(lambda: group.leader is not None)
    master = group.led_by.mastership
    assert "formed" in master.refusal(), "from the first ms on"
    assert master.epoch_confirmed
    group.run(100)
    assert "formed" in master.refusal()
    group.down.discard("b")
    group.until(lambda: len(group.state.sync_state_set) == 2)
    assert master.refusal() == ""


def test_a_group_that_asks_for_one_replica_is_open_once_its_log_has_begun() -> None:
    group = Electorate("a", needed=1)
    group.until(lambda: group.leader is not None)
    group.run(100)
    assert group.state.opened
    assert group.led_by.mastership.refusal() == ""


def test_a_node_with_a_log_begins_a_group_before_an_empty_one() -> None:
    group = Electorate("a", "b")
    group.down.add("a")
    group.until(lambda: group.leader is not None)
    disk = group.voters["b"].disk
    group.kill("b")
    fresh = Electorate("a", "b")
    save(disk, Membership())  # as a group that had its roles by hand until now
    fresh.voters["b"].disk.kill()
    fresh.restart("b", disk)
    fresh.until(lambda: fresh.leader is not None)
    assert fresh.leader is fresh.voters["b"]
    assert not [said for said in fresh.leader.said if isinstance(said, Wake)], "it waits for nobody"


def test_a_group_that_was_never_open_is_begun_again_by_its_first_node_only() -> None:
    """Nothing was acknowledged, so an empty directory in place of the first one lacks nothing."""
    group = Electorate("a", "b")
    group.down.add("b")
    group.until(lambda: group.leader is not None)
    before = group.state
    assert (before.version, before.opened) == (1, False)
    group.kill("a")
    group.run(6000)  # its lease ends: nobody copies from it any more
    group.down.discard("b")
    group.run(6000)
    assert group.leader is None, "the other node is empty as well, and is no member"
    group.restart("a", new_disk(99), incarnation=4242)
    group.until(lambda: len(group.state.sync_state_set) == 2)
    state = next(state for state in written(group.voters["a"]) if state.epoch == 2)
    assert (state.version, state.group_id) == (2, before.group_id)
    assert group.leader is group.voters["a"]


def test_when_the_master_dies_another_member_leads_the_next_epoch(three: Electorate) -> None:
    old = three.led_by
    three.kill(old.name)
    three.until(lambda: three.leader is not None, 4000)
    new = three.led_by
    assert new is not old
    assert three.state.epoch == 2
    three.until(lambda: names(three.state) == set("abc") - {old.name})


def test_a_put_that_waited_for_a_dead_member_is_answered_once_it_left(three: Electorate) -> None:
    leader = three.led_by
    master = known(leader.master)
    three.kill(min(set("abc") - {leader.name}))
    three.run(1500)
    end = put(master, b"x").end_offset
    master.await_slaves(end, MonoMs(three.now), "token")
    three.run(100)
    assert leader.released == [], "the dead one is still required"
    three.until(lambda: len(names(three.state)) == 2, 2000)
    assert leader.released == [("token", PutMessageStatus.PUT_OK)]
    assert master.validate(MonoMs(three.now)) == ""


def test_a_slave_follows_each_master_once_and_one_that_it_slept_through(three: Electorate) -> None:
    leader = three.led_by
    successor, asleep = three.others(leader)
    three.run(1000)
    three.down.add(asleep.name)
    leader.step(HandOver(successor.name, "t"))
    three.until(lambda: three.leader is successor)
    three.down.discard(asleep.name)
    three.run(1000)
    follows = [
        (said.master.replica.node, said.epoch) for said in asleep.said if isinstance(said, Follow)
    ]
    assert follows == [(leader.name, 1), (successor.name, 2)]


def test_an_old_master_comes_back_as_a_slave_by_itself(three: Electorate) -> None:
    old = three.led_by
    three.kill(old.name)
    three.until(lambda: three.leader is not None)
    again = three.restart(old.name)
    three.until(lambda: names(three.state) == set("abc"))
    assert again.machine.role is Role.FOLLOWING
    assert again.slave is not None
    assert again.slave.identity.promised_epoch == 2


def test_a_restarted_master_does_not_wait_for_its_own_old_lease(three: Electorate) -> None:
    old = three.led_by
    began = three.now
    three.kill(old.name)
    three.restart(old.name)
    three.until(lambda: three.leader is not None)
    assert three.now - began < 1500


def test_a_master_stops_at_its_deadline_by_its_own_clock(three: Electorate, leader: Voter) -> None:
    leader.cut_off = True
    master = known(leader.master)
    assert master.mandate is not None
    deadline = master.mandate.deadline_ms
    end = put(master, b"late").end_offset
    master.await_slaves(end, MonoMs(three.now), "token")
    assert master.step(masterevents.Flushed(), MonoMs(deadline)) == []
    assert master.stopped(MonoMs(deadline))
    three.now = deadline
    leader.step(Tick())
    assert leader.master is None
    assert leader.machine.role is Role.STANDING
    # By the registry's clock the lease lives for a moment longer: nobody leads before.
    assert all(v.master is None for v in three.voters.values())


def test_a_master_whose_lease_is_revoked_stops_at_once(three: Electorate, leader: Voter) -> None:
    three.table.drop(leader.machine.lease)
    leader.step(Changed())
    assert leader.master is None


def test_a_lease_that_is_lost_is_not_dropped_and_one_that_is_given_up_is_once(
    three: Electorate,
) -> None:
    """The others need not wait for its end."""
    lost, given_up = three.others(three.led_by)
    for voter in (lost, given_up):
        voter.said.clear()
    lost.step(LeaseLost(lost.machine.lease))
    assert lost.machine.lease == 0
    lease = given_up.machine.lease
    given_up.cut_off = True
    three.now = given_up.machine.deadline_ms
    given_up.step(Tick())
    given_up.step(Tick())
    for voter, drops in ((lost, []), (given_up, [DropLease(lease)])):
        assert [said for said in voter.said if isinstance(said, DropLease)] == drops
        assert voter.said.count(AskLease()) == 1


def test_a_lease_that_was_not_asked_for_is_not_taken(leader: Voter) -> None:
    """An answer that comes late: the registry may have ended that lease already."""
    lease, deadline = leader.machine.lease, leader.machine.deadline_ms
    leader.step(Leased(lease + 1000, MonoMs(deadline + 1000)))
    assert (leader.machine.lease, leader.machine.deadline_ms) == (lease, deadline)


def test_a_master_whose_lease_is_renewed_goes_on_past_its_first_deadline(three: Electorate) -> None:
    leader = three.led_by
    assert leader.mastership.mandate is not None
    first = leader.mastership.mandate.deadline_ms
    three.until(lambda: three.now > first)
    assert leader.mastership.stopped(MonoMs(three.now)) == ""
    assert leader.mastership.mandate.deadline_ms == leader.machine.deadline_ms


def test_acknowledgements_after_the_deadline_count_once_it_is_renewed(three: Electorate) -> None:
    leader = three.led_by
    master = known(leader.master)
    end = put(master, b"x").end_offset
    master.await_slaves(end, MonoMs(three.now), "token")
    three.now = leader.machine.deadline_ms
    for voter in three.voters.values():
        if voter.link is not None:
            voter.link.pump(three.now)
    assert master.store.confirm_offset < end
    assert master.validate(MonoMs(three.now)) == "", "nothing may be confirmed now"
    lease = leader.machine.lease
    leader.step(Leased(lease, MonoMs(three.now + 1000)))
    assert leader.released == [("token", PutMessageStatus.PUT_OK)]
    leader.said.clear()
    leader.step(Leased(lease, MonoMs(three.now + 1000)))
    assert leader.said == [], "nothing of its mandate changed"


def test_keys_that_change_during_a_read_are_read_again(leader: Voter) -> None:
    """The answer in flight may be older than the change."""
    leader.slow = True
    leader.said.clear()
    leader.step(Changed())
    leader.step(Changed())
    assert leader.said.count(Observe()) == 1, "one read at a time"
    leader.step(leader.late.pop())
    assert leader.said.count(Observe()) == 2
    leader.step(leader.late.pop())
    assert leader.said.count(Observe()) == 2


def without_its_master(group: Electorate) -> list[Voter]:
    """The candidates, in their order: nobody has looked since the master's lock went."""
    leader = group.led_by
    group.kill(leader.name)
    group.table.drop(leader.machine.lease)
    left = group.others(leader)
    assert leader.name < left[0].name, "it would come first, were it there"
    for voter in left:
        voter.said.clear()
    return left


def leads(voter: Voter) -> bool:
    return any(isinstance(said, Lead) for said in voter.said)


@pytest.mark.parametrize("why", ["its name", "a preferred successor", "it is drained"])
def test_each_candidate_leaves_the_election_to_those_before_it(three: Electorate, why: str) -> None:
    first, second = without_its_master(three)
    if why == "its name":
        first, second = second, first
    elif why == "it is drained":
        three.put(KEYS.drained(first.name), b"{}")
    else:
        write_state(three, three.state.changed(successor=second.name))
    first.step(Changed())
    wait = SUCCESSOR_MS if why == "a preferred successor" else RANK_MS
    assert Wake(MonoMs(three.now + wait)) in first.said
    second.step(Changed())
    assert leads(second)
    assert not leads(first)


def test_a_preferred_successor_that_is_gone_is_not_waited_for(three: Electorate) -> None:
    gone = three.state.master.node
    first, _ = without_its_master(three)
    write_state(three, three.state.changed(successor=gone))
    first.step(Changed())
    assert leads(first)


def test_only_a_member_removes_a_master_that_lacks_what_it_knows(three: Electorate) -> None:
    """Another node may know of bytes that were never confirmed."""
    leader = three.led_by
    first, second = three.others(leader)
    left = three.state.sync_state_set - {first.machine.me.replica}
    write_state(three, three.state.changed(sync_state_set=left))
    first.step(Changed())
    first.step(Contradicted(Epoch(1), "it lacks a record"))
    assert leader.machine.me.replica in three.state.sync_state_set
    second.step(Changed())
    second.step(Contradicted(Epoch(1), "it lacks a record"))
    assert names(three.state) == {second.name}
    assert leads(second)


def test_a_contradiction_is_reported_while_its_epoch_is_current(three: Electorate) -> None:
    leader = three.led_by
    assert leader.machine.notice == ""
    leader.step(Contradicted(three.state.epoch, "it lacks a record"))
    assert "older copy: it lacks a record" in leader.machine.notice
    leader.step(Contradicted(Epoch(three.state.epoch + 1), "it lacks a record"))
    assert leader.machine.notice == ""


def test_a_node_outside_the_set_is_never_elected(three: Electorate, leader: Voter) -> None:
    lagging = next(name for name in "abc" if name != leader.name)
    three.kill(lagging)
    three.until(lambda: names(three.state) == set("abc") - {lagging}, 10_000)
    for name in set("abc") - {lagging}:
        three.kill(name)
    back = three.restart(lagging)
    three.run(10_000)
    assert three.leader is None
    assert "not in the SyncStateSet" in back.machine.reason


def test_a_replaced_disk_is_not_the_member_it_was() -> None:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and len(group.state.sync_state_set) == 3)
    leader = group.led_by
    group.kill(*"abc")
    victim = next(name for name in "abc" if name != leader.name)
    back = group.restart(victim, new_disk(99), incarnation=4242)
    group.run(6000)
    assert group.leader is None
    assert "not in the SyncStateSet" in back.machine.reason


def test_a_group_whose_node_has_another_name_now_says_which_one_it_waits_for() -> None:
    group = Electorate("a", needed=1)
    group.until(lambda: group.leader is not None)
    group.kill("a")
    back = group.restart("d", group.voters["a"].disk)
    group.run(6000)
    assert group.leader is None
    assert "this is the directory of a: set node.name to a" in back.machine.reason


def test_a_group_without_its_members_says_that_an_operator_must_act(three: Electorate) -> None:
    three.until(lambda: names(three.state) == set("abc"))
    three.kill(*"abc")
    back = [three.restart(name, new_disk(90 + k), 4242 + k) for k, name in enumerate("ab")]
    three.run(6000)
    for voter in back:
        assert voter.machine.stranded == "", "c may come back"
        assert "SyncStateSet" in voter.machine.reason
    back.append(three.restart("c", new_disk(99), 99))
    three.run(6000)
    for voter in back:
        assert "no replica of the SyncStateSet is left: a, b, c came" in voter.machine.stranded
        assert "cluster elect --unclean" in voter.machine.reason
    back[0].step(ElectUnclean(three.state.epoch, "t"))
    assert back[0].master is not None
    assert back[0].machine.stranded == ""
    three.run(500)
    assert back[1].machine.stranded == ""


def test_a_node_that_has_not_saved_its_start_follows_no_master(three: Electorate) -> None:
    leader = three.led_by
    name = max(set("abc") - {leader.name})
    three.kill(name)
    voter = three.restart(name)
    voter.step(Changed())
    assert voter.machine.reason == "has no lease in the registry yet"
    voter.renew()
    voter.step(Changed())
    assert voter.machine.role is Role.FOLLOWING


def test_an_unreadable_start_is_not_a_start_of_this_directory(three: Electorate) -> None:
    leader = three.led_by
    key = KEYS.start(leader.machine.me.replica)
    three.put(key, b"[]")
    leader.step(Changed())
    assert leader.master is None
    assert "cannot read a start" in leader.machine.reason


@pytest.mark.parametrize("why", ["unfit", "refuse_to_lead"])
def test_a_node_that_is_unfit_or_cannot_open_its_epoch_leaves_it_to_another(
    leader: Voter, three: Electorate, why: str
) -> None:
    first, second = three.others(leader)
    setattr(first, why, "no room")
    three.kill(leader.name)
    three.until(lambda: three.leader is not None)
    assert three.leader is second


def test_a_node_that_cannot_open_its_epoch_tries_again_later() -> None:
    group = Electorate("a")
    voter = group.voters["a"]
    voter.refuse_to_lead = "no room"
    group.until(lambda: leads(voter))
    voter.said.clear()
    group.run(PAUSE_MS - 50)
    assert not leads(voter)
    group.run(1000)
    assert leads(voter)


def test_a_node_that_promised_a_newer_epoch_is_not_elected(three: Electorate) -> None:
    first, _ = without_its_master(three)
    assert first.slave is not None
    first.slave.promise(Epoch(9))
    first.step(Changed())
    assert not leads(first)
    assert first.machine.reason == "epoch 9 was seen, the registry's is older"


def test_the_outcome_of_an_election_without_an_answer_is_found_out(three: Electorate) -> None:
    leader = three.led_by
    three.kill(leader.name)
    for voter in three.voters.values():
        voter.lose_replies = True
    three.until(lambda: three.leader is not None)
    assert three.state.epoch == 2


def one_is_taken_out(three: Electorate) -> tuple[Voter, str, Observed, Committed]:
    """A slow leader takes out of the set one that is gone, and has not heard the answer yet.

    The leader, who is gone, the registry as it was before, and the answer.
    """
    leader = three.led_by
    gone = max(set("abc") - {leader.name})
    lease = three.voters[gone].machine.lease
    three.kill(gone)
    three.table.drop(lease)
    before = Observed(three.table.get(KEYS.prefix))
    leader.slow = True
    leader.step(Changed())
    leader.step(leader.late.pop())
    (change,) = leader.late
    assert isinstance(change, Committed)
    return leader, gone, before, change


def test_a_read_older_than_a_change_of_the_set_is_not_a_registry_that_fell_back(
    three: Electorate,
) -> None:
    leader, gone, stale, change = one_is_taken_out(three)
    leader.step(Changed())  # a read begins, and is overtaken by the answer to the change
    leader.late.clear()
    leader.step(change)
    leader.step(stale)
    leader.slow = False
    for event in leader.late:
        leader.step(event)
    three.run(500)
    assert names(three.state) == set("abc") - {gone}
    assert three.leader is leader
    assert three.state.epoch == 1


def test_a_change_answered_after_a_later_state_was_read_is_ignored(three: Electorate) -> None:
    """A process that was stopped for a while hears all of it at once, in any order."""
    leader, _, _, change = one_is_taken_out(three)
    state = three.state
    newer = replace(state, version=state.version + 1)
    three.put(KEYS.state, newer.to_bytes())
    leader.step(Changed())
    leader.step(leader.late.pop())
    assert load(leader.disk).version == newer.version
    leader.step(change)
    assert leader.machine.membership.version == newer.version
    assert load(leader.disk).version == newer.version


def test_elections_without_a_write_in_between_count_on(three: Electorate) -> None:
    for _ in range(20):
        leader = three.led_by
        epoch = three.state.epoch
        leader.step(HandOver("", "t"))
        for _ in range(400):
            if three.leader is not None and three.state.epoch > epoch:
                break
            three.run(25)
        assert three.state.epoch == epoch + 1
        three.until(lambda: len(three.state.sync_state_set) == 3)
        three.run(100)
    entries = [entry.epoch for entry in three.leader.part.history.entries]  # type: ignore[union-attr]
    assert entries == list(range(1, 22))


# -- planned switches ------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", [False, True])
def test_a_planned_switch_makes_the_named_node_the_master_once_that_has_everything(
    leader: Voter, three: Electorate, lacks: bool
) -> None:
    target = three.others(leader)[-1]
    if lacks:
        put(leader.mastership, b"not yet copied")
    leader.step(HandOver(target.name, "t"))
    if lacks:
        assert "takes over" in leader.mastership.stopped(MonoMs(three.now))
    three.until(lambda: three.leader is target, 500)
    assert leader.answers == [""]
    assert three.state.successor == ""


@pytest.mark.parametrize("drained", [False, True])
def test_the_member_that_holds_most_takes_over_unless_it_is_drained(
    leader: Voter, three: Electorate, drained: bool
) -> None:
    master = leader.mastership
    first, second = three.others(leader)
    put(master, b"copied by one")
    known(first.link).pump(three.now)
    held = [master.held_by(v.machine.me.replica) for v in (first, second)]
    assert held[0] > held[1]
    if drained:
        three.put(KEYS.drained(first.name), b"{}")
        leader.slow = True
        leader.step(Changed())
        leader.step(leader.late.pop())  # it sees that, and has no answer yet for a smaller set
        leader.step(HandOver("", "t"))
        assert master.stopped(MonoMs(three.now)) == f"{second.name} takes over"
    else:
        leader.step(HandOver("", "t"))
        three.until(lambda: three.leader is first, 500)
        assert leader.answers == [""]


def test_a_switch_is_retried_soon_and_abandoned_at_its_deadline(three: Electorate) -> None:
    leader = three.led_by
    put(leader.mastership, b"never copied")
    leader.step(HandOver(max(set("abc") - {leader.name}), "t"))
    assert Wake(MonoMs(three.now + 5)) in leader.said
    three.now += HAND_OVER_MS - 1
    leader.step(Changed())
    assert leader.answers == []
    three.now += 1
    leader.step(Changed())
    assert "in time" in leader.answers[-1]
    assert leader.mastership.stopped(MonoMs(three.now)) == ""


def test_a_switch_to_a_node_that_may_not_lead_is_refused(three: Electorate, leader: Voter) -> None:
    leader.step(HandOver("z", "t"))
    assert "cannot take over" in leader.answers[-1]
    other = three.others(leader)[0]
    other.step(HandOver("", "t"))
    assert "not the master" in other.answers[-1]
    assert leader.mastership.stopped(MonoMs(three.now)) == ""


def test_a_switch_to_a_gone_member_is_refused_and_one_to_the_master_done(three: Electorate) -> None:
    leader, gone, _, _ = one_is_taken_out(three)
    leader.step(HandOver(gone, "t"))
    assert f"{gone} cannot take over" in leader.answers[-1]
    leader.step(HandOver(leader.name, "t"))
    assert leader.answers[-1] == ""
    assert leader.mastership.stopped(MonoMs(three.now)) == ""


def test_a_returning_master_does_not_lead_before_its_new_epoch_is_open(three: Electorate) -> None:
    leader = three.led_by
    leader.step(HandOver("", "t"))
    three.until(lambda: three.leader not in (None, leader))
    three.run(1000)
    opening: list[Later] = []
    leader.slow_disk_promises = opening
    other = three.led_by
    other.step(HandOver(leader.name, "t"))
    three.until(lambda: leader.machine.role is Role.LEADING)
    assert opening
    leader.step(HandOver("", "again"))
    assert leader.answers[-1] == "this node is not the master"


def test_a_switch_past_its_deadline_is_abandoned_and_puts_continue(three: Electorate) -> None:
    leader = three.led_by
    target = max(set("abc") - {leader.name})
    put(leader.mastership, b"never copied")
    three.kill(target)
    leader.step(HandOver(target, "t"))
    three.until(lambda: bool(leader.answers), 5000)
    assert "in time" in leader.answers[-1] or "may not" in leader.answers[-1]
    assert leader.mastership.stopped(MonoMs(three.now)) == ""


def test_a_switch_without_an_answer_is_reported_as_unknown(three: Electorate) -> None:
    leader = three.led_by
    leader.lose_replies = True
    leader.step(HandOver("", "t"))
    three.until(lambda: three.leader not in (None, leader), 5000)  # it was made all the same
    answer = Answer("t", "the registry did not answer in time", unknown=True)
    assert [said for said in leader.said if isinstance(said, Answer)] == [answer]


def test_a_master_whose_switch_has_no_answer_stops_before_it_reads(three: Electorate) -> None:
    """The successor may lead already."""
    leader = three.led_by
    leader.cut_off = True
    leader.step(HandOver("", "t"))
    leader.step(Changed())
    assert leader.master is None


def test_a_master_that_has_handed_over_stops_before_it_reads_anything(three: Electorate) -> None:
    leader = three.led_by
    lease = leader.machine.lease
    three.run(100)
    leader.slow = True
    leader.step(HandOver("", "t"))
    assert leader.master is not None
    (change,) = leader.late
    leader.step(change)
    assert leader.master is None
    assert leader.answers == [""]
    assert leader.machine.lease == lease, "it lives, and may follow at once"


def test_a_master_that_stood_still_treats_no_member_as_late(three: Electorate) -> None:
    leader = three.led_by
    three.until(lambda: names(three.state) == set("abc"))
    three.run(100)

    def lone_step(later: int) -> int:
        """Nothing that the others send is read; the size of the set then."""
        three.now += later
        for voter in three.voters.values():
            voter.renew()
        leader.step(Tick())
        return len(names(three.state))

    put(leader.mastership, b"unread")
    half = leader.mastership.patience_ms // 2
    # It stood still at first, though its lease lasts; at last it has looked for long enough.
    assert [lone_step(ms) for ms in (half, half + 1, half, half, 1)] == [3, 3, 3, 3, 2]


def test_turns_of_a_clock_are_no_standstill_however_short_the_patience(three: Electorate) -> None:
    leader = three.led_by
    three.until(lambda: names(three.state) == set("abc"))
    three.run(100)
    leader.mastership.options = replace(leader.mastership.options, ha_max_time_slave_not_catchup=80)
    put(leader.mastership, b"unread")
    for _ in range(4):
        three.now += 60
        leader.renew()
        leader.step(Tick())
    assert len(names(three.state)) == 2


def test_an_unexpected_answer_changes_nothing(three: Electorate, leader: Voter) -> None:
    three.run(100)
    leader.said.clear()
    for event in (Committed(0, None), Uncertain(0)):
        leader.step(event)
    assert leader.said == []
    leader.slow = True
    leader.step(HandOver("", "t"))
    for event in (Committed(0, None), Uncertain(0)):
        leader.step(event)
    assert leader.answers == []


def test_a_registration_of_another_lease_or_node_is_made_again(three: Electorate) -> None:
    leader = three.led_by
    voter = three.others(leader)[0]
    me, lease = voter.machine.me, voter.machine.lease
    late = Put(KEYS.replica(voter.name), me.to_bytes(), leader.machine.lease)
    other = Put(KEYS.replica(voter.name), replace(me, endpoint="elsewhere:1").to_bytes(), lease)
    for found in (late, other):
        three.table.commit(Transaction((), (found,)))
        voter.step(Changed())
        row = three.table.rows[KEYS.replica(voter.name)]
        assert (row.value, row.lease) == (me.to_bytes(), lease)


def test_a_drained_master_whose_hand_over_failed_tries_again_later(three: Electorate) -> None:
    leader = three.led_by
    three.run(100)
    three.put(KEYS.drained(leader.name), b"{}")
    leader.step(Changed())
    assert "takes over" in leader.mastership.stopped(MonoMs(three.now))
    write_state(three, three.state)  # not seen by the master yet
    leader.step(Noted(None))
    for later in (0, PAUSE_MS - 1):
        leader.step(Leased(leader.machine.lease, MonoMs(three.now + 5000)))
        three.now += later
        leader.step(Tick())
        assert leader.mastership.stopped(MonoMs(three.now)) == ""
    three.now += 1
    leader.step(Changed())
    assert "takes over" in leader.mastership.stopped(MonoMs(three.now))


def test_the_lock_of_a_past_mastership_is_released_and_not_used_again(three: Electorate) -> None:
    leader = three.led_by
    lease = leader.machine.lease
    three.run(100)
    before = Observed(three.table.get(KEYS.prefix))
    leader.slow = True
    leader.step(HandOver("", "t"))
    leader.step(leader.late.pop(0))
    leader.said.clear()
    leader.step(before)
    assert not leads(leader)
    assert DropLease(lease) in leader.said


def test_a_switch_is_off_when_the_group_changes_meanwhile(three: Electorate, leader: Voter) -> None:
    three.run(100)
    write_state(three, three.state)  # not seen by the master yet
    leader.step(HandOver("", "t"))
    assert leader.answers == ["the group's state changed during the call: try again"]
    assert three.leader is leader
    assert leader.mastership.stopped(MonoMs(three.now)) == ""


def test_a_change_of_the_set_is_proposed_before_it_is_sent(three: Electorate) -> None:
    """Until it is answered both sets count."""
    leader = three.led_by
    assert leader.master is not None
    sync = known(leader.machine._sync)
    assert not sync.unsettled
    gone = three.others(leader)[-1]
    three.kill(gone.name)
    three.table.drop(gone.machine.lease)
    leader.slow = True
    leader.step(Changed())
    leader.step(leader.late.pop())
    assert isinstance(leader.late[-1], Committed)
    assert sync.unsettled
    leader.step(leader.late.pop())
    assert not sync.unsettled, "the answer says enough"
    assert gone.name not in {replica.node for replica in sync.required}


def test_repeating_a_switch_under_way_does_not_refuse_it(three: Electorate, leader: Voter) -> None:
    put(leader.mastership, b"not yet copied")
    for token in ("first", "again"):
        leader.step(HandOver("", token))
    three.until(lambda: three.leader not in (None, leader), 5000)
    answers = [said for said in leader.said if isinstance(said, Answer)]
    assert answers == [
        Answer("again", "a hand-over is already in progress", unknown=True),
        Answer("first", ""),
    ]


def test_a_drained_master_hands_over_and_leaves_the_set(three: Electorate, leader: Voter) -> None:
    three.put(KEYS.drained(leader.name), b"{}")
    three.until(lambda: three.leader not in (None, leader))
    three.until(lambda: names(three.state) == set("abc") - {leader.name})
    three.table.commit(Transaction((), (Delete(KEYS.drained(leader.name)),)))
    three.until(lambda: names(three.state) == set("abc"))


# -- nodes that others cannot reach ----------------------------------------------------------------


@pytest.mark.parametrize("why", ["drained", "full", "order", "order to it"])
def test_no_hand_over_goes_to_a_node_that_a_follower_cannot_reach(
    leader: Voter, three: Electorate, why: str
) -> None:
    """The master itself reaches it: only the other follower would be lost."""
    other, cut_off = three.others(leader)
    three.cannot_reach(cut_off.name, other.name)
    three.run(100)
    if why == "drained":
        three.put(KEYS.drained(leader.name), b"{}")
    elif why == "full":
        leader.full = True
    elif why == "order":
        leader.step(HandOver("", "t"))
    else:
        leader.step(HandOver(cut_off.name, "t"))
        assert leader.answers == [
            f"{cut_off.name} cannot take over: {other.name} cannot reach its replication address "
            f"{cut_off.name}:2 (Connection refused); set ha.advertise of {cut_off.name} to an "
            "address that the other nodes reach"
        ]
        return
    three.until(lambda: three.leader is other, 1500)


def test_a_master_that_would_be_the_only_one_to_follow_stays(three: Electorate) -> None:
    leader = three.led_by
    for name in set("abc") - {leader.name}:
        three.cannot_reach(name)
    three.run(100)
    three.put(KEYS.drained(leader.name), b"{}")
    three.run(3000)
    assert three.leader is leader
    leader.step(HandOver("", "t"))
    assert "cannot reach its replication address" in leader.answers[-1]


def test_followers_that_cannot_reach_each_other_hinder_no_hand_over(three: Electorate) -> None:
    leader = three.led_by
    first, second = sorted(set("abc") - {leader.name})
    three.cannot_reach(first, second)
    three.cannot_reach(second, first)
    three.run(100)
    leader.step(HandOver(second, "t"))
    three.until(lambda: three.leader is three.voters[second], 1500)


def test_what_was_found_of_another_address_or_by_a_gone_node_is_ignored(three: Electorate) -> None:
    leader = three.led_by
    other, target = sorted(set("abc") - {leader.name})
    three.cannot_reach(target, other, address="where it was before:2")
    three.run(100)
    assert leader.machine.view.unreached_by(target) == {}
    three.cannot_reach(target, other)
    three.run(100)
    assert set(leader.machine.view.unreached_by(target)) == {other}
    three.kill(other)
    three.table.drop(three.voters[other].machine.lease)
    leader.step(Changed())
    assert leader.machine.view.unreached_by(target) == {}
    reach = KEYS.reach("a")
    for odd in (b"", b"[]", b"7", b'{"b": 1}', b'{"b": ["x"]}', b"[" * 10_000):
        three.put(reach, odd, three.table.rows[KEYS.lock].lease)
        leader.step(Changed())
    assert three.leader is leader


def test_a_candidate_that_others_cannot_reach_waits_for_those_that_they_can(
    three: Electorate,
) -> None:
    first, second = sorted(set("abc") - {three.leader.name if three.leader else ""})
    three.cannot_reach(first)
    three.run(100)
    without_its_master(three)
    cut_off, reached = three.voters[first], three.voters[second]
    cut_off.step(Changed())
    assert Wake(MonoMs(three.now + RANK_MS + UNREACHED_MS)) in cut_off.said
    reached.step(Changed())
    assert leads(reached)


def test_the_only_candidate_is_elected_though_others_cannot_reach_it(three: Electorate) -> None:
    first, second = sorted(set("abc") - {three.leader.name if three.leader else ""})
    for name in (first, second):
        three.cannot_reach(name)
    three.run(100)
    without_its_master(three)
    three.voters[first].step(Changed())
    assert leads(three.voters[first]), "the other one is reached by no more"


def test_a_master_that_others_cannot_reach_leaves_to_one_that_they_can(three: Electorate) -> None:
    first = three.led_by
    end = put(first.mastership, b"acknowledged").end_offset
    three.until(lambda: first.store.confirm_offset == end)
    three.cannot_reach(first.name)
    for voter in three.voters.values():
        voter._cut_link()
    put(first.mastership, b"not acknowledged")
    began = three.now
    three.until(lambda: three.leader not in (None, first), 6000)
    assert three.now - began >= failover.UNREACHED_MS
    assert first.store.confirm_offset == end
    second = three.led_by
    assert second.store.log.max_offset >= end
    three.until(lambda: log_bytes(first.store) == log_bytes(second.store))
    assert "cannot follow it at" in "".join(first.stopped)
    epoch = three.state.epoch
    three.run(10_000)
    assert three.state.epoch == epoch, "and nobody takes it back"


def test_a_master_that_others_cannot_reach_stays_while_they_follow_or_nobody_is_better(
    leader: Voter, three: Electorate
) -> None:
    three.cannot_reach(leader.name)
    three.run(2 * failover.UNREACHED_MS)
    assert three.leader is leader, "its streams are as they were"
    for name in "abc":
        three.cannot_reach(name)
    for voter in three.voters.values():
        voter._cut_link()
    three.run(2 * failover.UNREACHED_MS)
    assert three.leader is leader, "the others could be followed by no more"
    for voter in three.voters.values():
        voter.unreachable = {
            name: one for name, one in voter.unreachable.items() if name == leader.name
        }
    three.until(lambda: three.leader not in (None, leader), 6000)
    second = three.led_by
    three.until(lambda: names(three.state) == set("abc"))
    for name in "abc":
        three.voters[name].unreachable.clear()
    three.cannot_reach(second.name)
    for voter in three.voters.values():
        voter._cut_link()
    three.until(lambda: three.leader not in (None, second), 6000)
    epoch = three.state.epoch
    three.cannot_reach(three.leader.name if three.leader else "")
    three.run(20_000)
    assert three.state.epoch <= epoch + 2, "each left once in a while"


# -- full disks ------------------------------------------------------------------------------------


def test_a_master_with_a_full_disk_hands_over_to_a_member_with_room(three: Electorate) -> None:
    leader = three.led_by
    full, roomy = three.others(leader)
    full.full = True
    three.until(lambda: not leader.machine.view.has_room(full.name))
    leader.full = True
    assert leader.machine.is_relieved
    three.until(lambda: three.leader is roomy, 1000)
    three.run(2000)
    assert three.leader is roomy
    assert not leader.machine.is_relieved, "one member with room is fewer than puts require"
    full.full = False
    three.until(lambda: leader.machine.is_relieved)


def test_a_master_with_a_full_disk_stays_where_no_member_says_that_it_has_room(
    leader: Voter, three: Electorate
) -> None:
    """As nodes of v0.1.0, which say nothing of their disks."""
    for voter in three.voters.values():
        voter.full = voter is not leader
    three.until(lambda: not any(map(leader.machine.view.has_room, set("abc") - {leader.name})))
    leader.full = True
    three.run(5000)
    assert three.leader is leader
    assert not leader.machine.is_relieved
    three.others(leader)[-1].full = False
    three.until(lambda: three.leader not in (None, leader), 1000)


def test_a_mark_of_room_ends_with_the_nodes_lease(three: Electorate, leader: Voter) -> None:
    gone = max(set("abc") - {leader.name})
    assert leader.machine.view.has_room(gone)
    three.kill(gone)
    three.table.drop(three.voters[gone].machine.lease)
    leader.step(Changed())
    assert not leader.machine.view.has_room(gone)


def test_a_mastership_that_was_handed_over_is_not_handed_back_at_once(
    three: Electorate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "FULL_PAUSE_MS", 5000)
    third = three.others(three.led_by)[0]
    third.full = True
    three.until(lambda: not three.led_by.machine.view.has_room(third.name))
    first, second = hands_on_when_full(three)
    first.full, second.full = False, True
    began = three.now
    three.run(3500)
    assert three.leader is second
    three.until(lambda: three.leader not in (None, second), 3000)
    assert three.now - began < 6000


def hands_on_when_full(three: Electorate) -> tuple[Voter, Voter]:
    """The leader's disk is full from now on; it, and who leads then."""
    first = three.led_by
    first.full = True
    three.until(lambda: three.leader not in (None, first), 1000)
    return first, three.led_by


def test_a_master_that_is_full_as_well_hands_on_at_once_to_a_third_member_with_room(
    three: Electorate,
) -> None:
    first, second = hands_on_when_full(three)
    first.full = False
    _, third = hands_on_when_full(three)
    assert third is not first, "it may be full again after a few messages"
    third.full = True
    three.run(5000)
    assert three.leader not in (None, first, second)


# -- a registry that forgot ------------------------------------------------------------------------


def test_a_registry_that_fell_back_is_not_trusted(three: Electorate) -> None:
    old = three.state
    three.led_by.step(HandOver("", "t"))
    three.until(lambda: three.state.epoch == 2 and three.leader is not None)
    newest = three.state
    three.table.commit(Transaction((), (Delete(KEYS.lock),)))
    write_state(three, old)
    three.run(5000)
    assert three.leader is None
    assert all("fell back" in voter.machine.reason for voter in three.voters.values())
    write_state(three, newest)
    three.until(lambda: three.leader is not None)


def test_a_registry_that_lost_nothing_but_a_promise_is_not_trusted(three: Electorate) -> None:
    """Nor does it lower the promise where an operator elects a node by hand."""
    three.until(lambda: KEYS.guarantee in three.table.rows)
    three.run(100)
    backup = {key: three.table.rows[key] for key in (KEYS.state, KEYS.guarantee)}
    leader = three.led_by
    promised = Guarantee(3, sync_flush=True, by_operator=True)
    order = known(leader.machine.promise(promised))
    assert three.table.commit(order) is not None
    leader.step(Changed())
    three.run(2000)
    assert three.leader is leader
    assert leader.machine.guarantee.settings() == promised.settings()
    changes = [Put(key, row.value) for key, row in backup.items()]
    three.table.commit(Transaction((), (*changes, Delete(KEYS.lock))))
    three.run(5000)
    assert three.leader is None
    assert all("fell back" in voter.machine.reason for voter in three.voters.values())
    leader.step(ElectUnclean(three.state.epoch, "token"))
    three.until(lambda: three.leader is leader)
    three.run(2000)
    assert Guarantee.from_bytes(three.table.rows[KEYS.guarantee].value) == promised
    assert all(voter.machine.view.guarantee == promised for voter in three.voters.values())


def test_a_registry_that_lost_everything_is_not_reinitialised(three: Electorate) -> None:
    three.table.rows.clear()
    three.run(5000)
    assert three.leader is None
    assert KEYS.state not in three.table.rows
    assert all("lost" in voter.machine.reason for voter in three.voters.values())


def test_a_registry_of_another_group_is_not_trusted() -> None:
    group = Electorate("a", "b")
    group.until(lambda: KEYS.state in group.table.rows and len(group.state.sync_state_set) == 2)
    for name in "ab":
        group.kill(name)
    group.table = RegistryTable()
    other = Electorate("a", "b", fresh_id="other")
    other.until(lambda: KEYS.state in other.table.rows)
    disk = group.voters["a"].disk
    other.kill("a")
    back = other.restart("a", disk)
    other.run(3000)
    assert "holds group" in back.machine.reason


# -- the last resort -------------------------------------------------------------------------------


def test_an_unclean_election_names_the_epoch_and_records_what_it_gives_up(
    leader: Voter, three: Electorate
) -> None:
    lagging = next(name for name in "abc" if name != leader.name)
    three.kill(lagging)
    three.until(lambda: len(three.state.sync_state_set) == 2, 10_000)
    for name in set("abc") - {lagging}:
        three.kill(name)
    back = three.restart(lagging)
    three.run(5000)
    back.step(ElectUnclean(Epoch(7), "t"))
    assert "not 7" in back.answers[-1]
    back.step(ElectUnclean(Epoch(1), "t"))
    assert back.answers[-1] == ""
    three.run(100)
    assert back.master is not None
    (row,) = three.state.discarded
    assert (row.epoch, row.node) == (2, lagging)
    assert len(row.given_up) == 2


def test_an_unclean_election_reinitialises_a_lost_registry_for_all_nodes(three: Electorate) -> None:
    three.table.rows.clear()
    three.run(5000)
    three.voters["b"].step(ElectUnclean(Epoch(0), "t"))
    assert (
        three.voters["b"].answers[-1] == "the last epoch is 1, not 0: see `cluster status`"
    )  # as its own disk knows
    three.voters["b"].step(ElectUnclean(Epoch(1), "t"))
    three.until(lambda: three.leader is three.voters["b"])
    three.until(lambda: len(three.state.sync_state_set) == 3)
    assert three.state.epoch == 2


def test_an_unclean_election_is_the_next_version_of_a_group_that_is_open(three: Electorate) -> None:
    before = three.state
    first, _ = without_its_master(three)
    first.step(ElectUnclean(before.epoch, "t"))
    assert leads(first)
    after = next(state for state in written(first) if state.epoch == 2)
    assert (after.version, after.epoch, after.opened) == (before.version + 1, 2, True)
    assert after.group_id == before.group_id


def test_a_master_that_does_not_believe_the_registry_gives_up_its_lease(three: Electorate) -> None:
    leader = three.led_by
    lease = leader.machine.lease
    write_state(three, replace(three.state, group_id="another"))
    leader.step(Changed())
    assert leader.master is None
    assert DropLease(lease) in leader.said
    assert leader.machine.lease == 0


def test_an_unclean_election_may_begin_a_group() -> None:
    group = Electorate("a")
    voter = group.voters["a"]
    voter.unfit = "damage"
    group.run(1000)
    assert (voter.master, voter.machine.reason) == (None, "not eligible: damage")
    voter.step(ElectUnclean(Epoch(0), "t"))
    assert voter.answers == [""]
    state = written(voter)[0]
    assert (state.version, state.epoch, state.opened) == (1, 1, True)
    assert state.group_id.startswith(group.fresh_id)


def test_nobody_is_elected_uncleanly_beside_a_master_or_without_a_lease(three: Electorate) -> None:
    """A lock without one would never end."""
    first = three.others(three.led_by)[0]
    first.step(ElectUnclean(three.state.epoch, "t"))
    assert first.answers == ["the group has a master"]
    without_its_master(three)
    first.step(LeaseLost(first.machine.lease))
    first.said.clear()
    first.step(Changed())
    assert not [said for said in first.said if isinstance(said, Commit)], "nor otherwise"
    first.step(ElectUnclean(three.state.epoch, "t"))
    assert first.answers[1:] == ["this node has no lease in the registry yet: try again"]
    assert not [said for said in first.said if isinstance(said, Commit)]


def test_changes_while_a_master_opens_its_epoch_are_deferred(three: Electorate) -> None:
    first, _ = without_its_master(three)
    opening: list[Later] = []
    first.slow_disk_promises = opening
    three.until(lambda: bool(opening))
    first.step(Changed())
    first.step(Tick())
    assert (first.machine.role, first.master) == (Role.LEADING, None)
    first.slow_disk_promises = None
    opening[0].end()
    three.until(lambda: names(three.state) == {"b", "c"})
    assert three.leader is first


def test_a_change_without_an_answer_is_settled_though_no_other_is_due(three: Electorate) -> None:
    """Until then all that it named must have what is confirmed."""
    leader = three.led_by
    assert leader.master is not None
    sync = known(leader.machine._sync)
    members = sync.members
    sync.propose(members - {min(members - {leader.machine.me.replica}, key=str)})
    assert sync.unsettled
    before = three.state.version
    three.run(100)
    assert not sync.unsettled
    assert (three.state.version, sync.members) == (before + 1, members)


def test_a_change_of_the_set_is_refused_when_the_lock_is_another_ones(three: Electorate) -> None:
    # What a zombie does: everything it checks has changed meanwhile.
    stale = Transaction(
        (Check(KEYS.state, 1), Check(KEYS.lock, 1)), (Put(KEYS.state, three.state.to_bytes()),)
    )
    assert three.table.commit(stale) is None


def test_a_membership_file_that_is_damaged_is_not_taken_for_none() -> None:
    disk = new_disk()
    save(disk, Membership("id", 7))
    assert load(disk) == Membership("id", 7)
    for changed in (disk.read(PATH).replace(b"7", b"8"), disk.read(PATH)[:-1], b"[" * 1024):
        disk.write(PATH, changed)
        with pytest.raises(BadStoreFile):
            load(disk)


def test_a_power_cut_while_a_membership_is_written_leaves_the_one_before_it() -> None:
    disk = new_disk()
    for version in range(3, 9):
        save(disk, Membership("id", version))
        before = disk.read(PATH)
        save(disk, Membership("id", version + 1))
        (at,) = (k for k in (0, 512) if disk.read(PATH)[k : k + 512] != before[k : k + 512])
        disk.open(PATH, True).memory[at + 9 : at + 512] = 0
        assert load(disk) == Membership("id", version)


def test_a_full_disk_has_room_for_the_newest_membership() -> None:
    disk = new_disk()
    save(disk, Membership("id", 7))
    disk.full = True
    for version in range(8, 20):
        save(disk, Membership("id", version))
        assert load(disk) == Membership("id", version)


def test_a_node_with_a_full_disk_still_decides_and_saves_the_group(three: Electorate) -> None:
    leader = three.led_by
    full, gone = three.others(leader)
    three.run(1500)
    full.disk.full = True
    three.kill(gone.name)
    three.until(lambda: names(three.state) == {leader.name, full.name})
    three.until(lambda: full.machine.membership.version == three.state.version)
    assert load(full.disk) == full.machine.membership
    assert full.machine.role is Role.FOLLOWING


def test_nobody_follows_or_leads_before_the_group_is_noted(three: Electorate) -> None:
    leader = three.led_by
    slow, gone = three.others(leader)
    three.run(1500)
    slow.slow_disk = True
    three.kill(leader.name)
    three.kill(gone.name)
    three.restart(gone.name)
    three.until(lambda: gone.master is not None or bool(slow.late_notes))
    three.run(3000)
    version = load(slow.disk).version
    assert slow.machine.view.state is not None
    assert slow.machine.view.state.version > version
    decided = [said for said in slow.said if isinstance(said, Lead | Follow | Commit)]
    three.run(1000)
    assert [said for said in slow.said if isinstance(said, Lead | Follow | Commit)] == decided
    (found,) = slow.late_notes  # one at a time
    slow.slow_disk = False
    slow.step(Noted(note(slow.disk, found)))
    assert load(slow.disk) == slow.machine.membership, "what was seen meanwhile is noted next"
    three.until(lambda: slow.machine.role is Role.FOLLOWING or three.leader is slow)


def test_a_state_seen_during_a_save_is_saved_next_and_used_after_that(three: Electorate) -> None:
    leader = three.led_by
    slow = three.others(leader)[0]
    three.run(1500)
    slow.slow_disk = True
    slow.step(Changed())
    assert slow.late_notes == [], "nothing is new"
    for _ in range(2):
        write_state(three, three.state.changed())
        slow.step(Changed())
    (found,) = slow.late_notes
    assert found.version == three.state.version - 1
    slow.late_notes.clear()
    slow.step(Noted(note(slow.disk, found)))
    (found,) = slow.late_notes
    assert found.version == three.state.version
    slow.said.clear()
    three.table.drop(leader.machine.lease)
    slow.step(Changed())
    assert slow.said == [Observe()]
    slow.step(Noted(note(slow.disk, found)))
    assert slow.machine.role is Role.STANDING


def test_a_member_that_left_is_required_until_that_is_noted(three: Electorate) -> None:
    leader = three.led_by
    assert leader.master is not None
    sync = known(leader.machine._sync)
    three.run(1500)
    leader.slow_disk = True
    gone = three.others(leader)[0]
    three.kill(gone.name)
    three.until(lambda: gone.name not in names(three.state))
    assert gone.name in {replica.node for replica in sync.required}
    (found,) = leader.late_notes
    leader.slow_disk = False
    leader.step(Noted(note(leader.disk, found)))
    assert gone.name not in {replica.node for replica in sync.required}


def test_a_master_whose_note_does_not_come_back_stops_at_its_deadline(three: Electorate) -> None:
    leader = three.led_by
    three.run(1500)
    leader.slow_disk = True
    three.kill(next(voter.name for voter in three.voters.values() if voter is not leader))
    three.until(lambda: bool(leader.late_notes))
    leader.cut_off = True
    three.until(lambda: leader.master is None, 5000)


def test_a_disk_that_was_full_from_the_start_notes_the_group_later(three: Electorate) -> None:
    leader = three.led_by
    full = three.others(leader)[0]
    full.disk.remove(PATH)
    full.disk.full = True
    full.machine.group.saved = Membership()
    three.run(1500)
    assert load(full.disk) == Membership()
    full.disk.full = False
    three.run(1500)
    assert load(full.disk) == full.machine.membership != Membership()


def test_a_membership_that_only_the_page_cache_has_is_saved_again(three: Electorate) -> None:
    three.until(lambda: three.leader is not None and names(three.state) == {"a", "b", "c"})
    voter = three.voters["b"]
    version = load(voter.disk).version
    three.kill("b")
    inode = voter.disk.inodes(True)[PATH]
    inode.durable[:] = 0  # as after a sync that failed: programs see it, the disk never gets it
    inode.lose_sync()
    for other in ("a", "c"):
        three.voters[other].cut_off = True  # nothing new is to be noted
    three.restart("b")
    three.run(200)
    assert three.state.version == version
    assert membership_on(voter.disk)[:2] == (three.state.group_id, version)


def test_validate_reports_an_inconsistent_machine(three: Electorate, leader: Voter) -> None:
    machine = leader.machine
    follower = next(voter.machine for voter in three.voters.values() if voter is not leader)
    follower._followed = None
    assert follower.validate() == "FOLLOWING, and follows None"
    machine._asked_lease = True
    assert machine.validate() == "asks for a lease beside the one it has"
    machine.lease = 0
    assert machine.validate() == "LEADING without a lease"
    machine.role = Role.STANDING
    assert machine.validate() == "STANDING with a mastership"


def test_validate_reports_a_master_without_its_mandate(leader: Voter) -> None:
    sync = known(leader.machine._sync)
    sync.propose(sync.members)
    assert leader.machine.validate() == ""
    sync.propose(frozenset())
    leader.machine.deadline_ms = MonoMs(leader.machine.deadline_ms + 1)
    assert leader.machine.validate() == "the master does not know its mandate"


def test_a_node_that_asks_for_fewer_replicas_acknowledges_by_what_its_group_promises() -> None:
    group = Electorate("a", "b", "c", weak={"c": 1})
    group.down.add("c")
    group.until(lambda: KEYS.guarantee in group.table.rows)
    group.down.discard("c")
    group.until(lambda: names(group.state) == {"a", "b", "c"})
    assert group.leader is not None
    group.leader.step(HandOver("c", "token"))
    weak = group.voters["c"]
    group.until(lambda: group.leader is weak and len(group.state.sync_state_set) == 3)
    assert weak.machine.weaker == ["in-sync-replicas"]
    for name in ("a", "b"):
        group.kill(name)
    group.run(10_000)
    assert len(group.state.sync_state_set) == 2, "the set does not shrink below the promise"
    assert weak.mastership.refusal() == "1 of 2 required replicas are in sync"
    end = put(weak.mastership, b"m").end_offset
    assert weak.mastership.await_slaves(end, MonoMs(group.now), "a put") is None
    assert not weak.released, "nobody else has it"


def test_a_node_of_a_version_without_moves_is_not_in_sync_where_queues_have_moved() -> None:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and names(group.state) == {"a", "b", "c"})
    leader = group.led_by
    older, newer = group.others(leader)
    group.has_moves = True
    group.older.add(older.name)
    group.kill(older.name)
    older = group.restart(older.name)
    group.until(lambda: names(group.state) == {leader.name, newer.name})
    assert leader.machine.barred == [older.name]
    assert known(older.link).slave is older.slave  # it follows
    leader.step(HandOver(older.name, "t"))
    assert "not alive and in sync" in leader.answers[-1]
    group.kill(leader.name)
    group.until(lambda: group.leader is newer)
    group.run(2000)
    assert names(group.state).isdisjoint({older.name})
    group.older.clear()
    group.kill(older.name)
    group.restart(older.name)
    group.until(lambda: names(group.state) == {older.name, newer.name})


def test_a_pair_refuses_puts_rather_than_count_a_node_without_moves() -> None:
    group = Electorate("a", "b")
    group.until(lambda: KEYS.state in group.table.rows and names(group.state) == {"a", "b"})
    leader = group.led_by
    (older,) = group.others(leader)
    group.kill(older.name)
    put(leader.mastership, b"x")
    group.has_moves = True
    group.older.add(older.name)
    older = group.restart(older.name)
    group.until(lambda: names(group.state) == {leader.name})
    pauses = {one.mandate.paused for one in leader.said if isinstance(one, Instruct)}
    assert any(why.startswith(f"{older.name} must be upgraded") for why in pauses)
    assert older.store.log.max_offset == leader.store.log.max_offset  # nothing has one copy only
    assert leader.mastership.stopped(MonoMs(group.now)) == ""
    assert leader.mastership.refusal() == "1 of 2 required replicas are in sync"
