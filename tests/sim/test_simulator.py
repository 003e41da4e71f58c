"""The simulator itself: runs repeat exactly, parts fail as ordered, checkers detect violations.

Many seeds, all kept runs and all planted bugs run by `make sim` and `make sim-mutants`; here, a few
that the commit draws.
"""

import contextlib
import gc
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from duolog_server.ha.epochs import Epoch
from sim import checks, faults
from sim.__main__ import REGRESSIONS, run_kept
from sim.clients import History, Read, Send
from sim.cluster import Cluster, run
from sim.disk import SimDisk
from sim.drawn import drawn, said
from sim.faults import Fault
from sim.ghost import Ghost
from sim.hunting import hunt, read_notes
from sim.mutants import MUTANTS, Mutant
from sim.mutants_access import with_access
from sim.mutants_clocks import CLOCKS, jumps
from sim.mutants_election import slow_etcd_and_short_cuts
from sim.mutants_lite import with_lite
from sim.mutants_services import with_poison, with_sdk
from sim.mutants_steps import at_steps
from sim.network import Network, Weather, stream
from sim.shrink import shrink
from sim.witness import Violation
from sim.world import World
from tests.known import known

KEPT, PLANTED = 6, 8  # how many `make test` has of the runs that failed once, and of planted bugs
ROOT = Path(__file__).parent.parent.parent


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", drawn(sorted(REGRESSIONS.glob("*.json")), KEPT), ids=lambda path: path.stem
)
def test_a_run_that_failed_once_never_fails_again(path: Path) -> None:
    assert run_kept(path).violation == "", f"{said()}: python -m sim --replay {path}"


def test_every_guarantee_holds() -> None:
    for seed in drawn(range(1 << 16), 3):
        outcome = run(seed)
        assert outcome.violation == "", f"python -m sim --seed {seed} --trace"


def test_guarantees_of_elected_groups_hold_while_the_set_changes_late() -> None:
    for seed in range(10):
        outcome = run(seed, slow_etcd_and_short_cuts(seed), elected=True)
        assert outcome.violation == "", seed


def test_no_loop_of_a_run_outlives_it() -> None:
    assert run(12, elected=True).violation == ""  # its nodes have logs of their own
    gc.collect()  # a loop that was not closed complains


def test_guarantees_of_services_hold_and_a_run_is_repeatable() -> None:
    first, again = (run(1, with_poison(1), elected=True) for _ in range(2))
    assert (first.violation, again.violation) == ("", "")
    assert first.digest == again.digest
    counted = ("popped", "popped_again", "poisoned", "delayed", "half_messages_decided")
    for what in (*counted, "failed_over"):
        assert first.counts[what] > 0, what


def test_guarantees_hold_for_programs_of_the_sdk() -> None:
    first, again = (run(11, with_sdk(11), elected=True) for _ in range(2))
    assert (first.violation, again.violation) == ("", "")
    assert first.digest == again.digest
    for what in ("sdk_sent", "sdk_given_again", "sdk_takeovers", "sdk_published"):
        assert first.counts[what] > 0, what


def test_guarantees_of_lite_topics_hold_and_a_run_is_repeatable() -> None:
    first, again = (run(1, with_lite(1), elected=True) for _ in range(2))
    assert (first.violation, again.violation) == ("", "")
    assert first.digest == again.digest
    for what in ("lite_sent", "lite_given_again", "lite_subscriptions", "lite_forgotten"):
        assert first.counts[what] > 0, what


def test_guarantees_of_users_and_quotas_hold_and_a_run_is_repeatable() -> None:
    first, again = (run(0, with_access(0), elected=True) for _ in range(2))
    assert (first.violation, again.violation) == ("", "")
    assert first.digest == again.digest
    counted = ("access_changed", "access_admitted", "access_denied", "access_strangers")
    for what in (*counted, "quota_passed", "quota_throttled", "quota_waits_kept"):
        assert first.counts[what] > 0, what


def test_guarantees_hold_when_masters_stop_between_two_steps() -> None:
    plans = [at_steps("after D", "refused D", "before timers", "after X")(seed) for seed in (1, 1)]
    outcomes = [run(1, planned, elected=True) for planned in plans]
    assert [outcome.violation for outcome in outcomes] == ["", ""]
    assert outcomes[0].digest == outcomes[1].digest
    assert outcomes[0].counts["killed_at_step"] > 0


def test_a_seed_repeats_its_run_and_another_seed_does_not() -> None:
    digests = [run(seed).digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_a_seed_repeats_its_run_in_another_process() -> None:
    command = [sys.executable, "-m", "sim", "--seed", "7"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert run(7).digest in found.stderr


QUICK = (
    "access-slave-keeps-users",
    "access-rights-until-restart",
    "quota-not-in-snapshots",
    "quota-anew",
    "delays-deaf",
    "committed-again",
    "send-new-sequence",
    "sink-ids-by-chance",
    "pop-begins-anew",
    "retry-for-ever",
    "tables-ahead",
    "group-commits-back",
    "levels-early",
    "halves-visible",
    "ack-before-slave",
    "max-for-min",
    "sent-for-received",
    "received-for-durable",
    "ack-ahead",
    "falling-confirm",
    "nothing-hidden",
    "no-epochs",
    "visible-offsets",
    "small-window",
    "any-member",
    "eager-shrink",
    "blind-members",
    "registry-believed",
    "shrinks-to-one",
    "offsets-of-readers",
    "slave-shows-all",
    "end-is-start",
    "nothing-adopted",
    "connected-counts",
    "state-unchecked",
    "promise-ignored",
    "promise-unwritten",
    "recovered-unsynced",
    "wiped-believed",
)


@pytest.mark.parametrize(
    "mutant",
    drawn([m for m in MUTANTS if m.name in QUICK], PLANTED),
    ids=lambda mutant: mutant.name,
)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    catch = hunt(mutant, read_notes().get(mutant.name))
    assert catch.seed >= 0, f"not caught, {said()}: {catch.violation}"


def test_programs_of_a_run_that_fails_leave_no_warnings() -> None:
    mutant = next(m for m in MUTANTS if m.name == "group-no-grace")
    catch = hunt(mutant, read_notes()[mutant.name])
    assert catch.seed >= 0, catch.violation
    gc.collect()  # a warning would be the error of the test in which it happens to come


@pytest.mark.parametrize("mutant", CLOCKS[:1], ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_clocks_is_caught_when_they_jump(mutant: Mutant) -> None:
    assert not run(0, jumps(0), elected=mutant.elected).violation
    with mutant.planted():
        assert any(run(seed, jumps(seed), elected=mutant.elected).violation for seed in range(20))


def test_a_failing_run_is_shrunk_and_written_down() -> None:
    mutant = next(m for m in MUTANTS if m.name == "ack-before-slave")
    with mutant.planted():
        seed = next(seed for seed in range(20) if run(seed).violation)
        planned = Cluster(seed).planned
        fewest, why = shrink(planned, lambda some: run(seed, some).violation)
    assert len(fewest) <= len(planned)
    assert faults.loads(faults.dumps(seed, fewest, why, True)) == (seed, fewest, True)


def test_shrinking_keeps_exactly_what_is_needed() -> None:
    planned = [Fault(float(k), "kill", "a") for k in range(13)]
    needed = {3.0, 11.0}

    def fails(some: list[Fault]) -> str:
        return "bad" if needed <= {fault.at for fault in some} else ""

    fewest, why = shrink(planned, fails)
    assert {fault.at for fault in fewest} == needed
    assert why == "bad"


def test_what_needs_services_does_nothing_where_shrinking_left_them_out() -> None:
    kinds = (faults.SDK_ON, faults.LITE_ON, faults.ACCESS_ON, faults.POISON_ON, faults.REMADE_ON)
    planned = [Fault(0.0, kind, faults.NODES[0]) for kind in (*kinds, faults.EXPIRES)]
    assert run(3, planned, elected=True).violation == ""


# -- the disk --------------------------------------------------------------------------------------


def disk() -> SimDisk:
    return SimDisk(random.Random(1), lambda: 0.0)


def lose_everything(made: SimDisk) -> None:
    """A power cut in which nothing that could be lost is kept."""

    class Worst(random.Random):
        def choice(self, options):  # type: ignore[no-untyped-def]
            return options[0]

        def randint(self, low: int, high: int) -> int:
            return low

    made._chance = Worst()
    made.power_cut()


def test_synced_bytes_survive_a_power_cut_and_others_may_not() -> None:
    made = disk()
    file = made.create("d/f", 2048)
    file.memory[:1024] = 1
    file.sync()
    made.sync_dir("d")
    file.memory[1024:] = 2
    unnamed = made.create("d/g", 512)
    unnamed.sync()
    lose_everything(made)
    again = made.open("d/f", True)
    assert again.memory[:1024].all()
    assert not again.memory[1024:].any()
    assert made.size("d/g") == -1, "its name was never synced"


def test_a_kill_loses_no_written_bytes() -> None:
    made = disk()
    file = made.create("f", 512)
    file.memory[:] = 3
    made.kill()
    assert made.open("f", True).memory.all()


def test_a_failed_sync_is_not_repaired_by_a_later_one() -> None:
    made = disk()
    file = made.create("f", 1024)
    made.sync_dir("")
    file.memory[:] = 4
    made.syncs_to_fail = 1
    with pytest.raises(OSError, match="simulated"):
        file.sync()
    file.sync()
    lose_everything(made)
    assert not made.open("f", True).memory.any()


def test_names_come_back_in_the_order_of_a_journal() -> None:
    for seed in range(30):
        made = SimDisk(random.Random(seed), lambda: 0.0)
        made.write("a", b"1")
        made.write("b", b"2")
        made.rename("b", "c")
        made.remove("a")
        made.power_cut()
        assert made.list("") in ([], ["a"], ["a", "b"], ["a", "c"], ["c"])


# -- the network -----------------------------------------------------------------------------------


def test_frames_arrive_in_order_unless_told_otherwise_and_cuts_are_one_way() -> None:
    world = World(5)
    network = Network(world)
    ours, theirs = stream(network, "a", "b")
    heard: list[bytes] = []
    back: list[bytes] = []
    theirs.on_frame = heard.append
    ours.on_frame = back.append
    for k in range(50):
        ours.send(b"%d" % k)
    world.run_until(100, lambda: None)
    assert heard == [b"%d" % k for k in range(50)]
    network.cuts.add(("a", "b"))
    ours.send(b"lost")
    theirs.send(b"found")
    world.run_until(200, lambda: None)
    assert (len(heard), back, network.lost) == (50, [b"found"], 1)
    closed: list[int] = []
    theirs.on_close = lambda: closed.append(1)
    ours.close()
    world.run_until(300, lambda: None)
    assert not closed, "half-open"


def test_a_faulty_network_loses_duplicates_and_reorders() -> None:
    world = World(6)
    network = Network(world)
    network.weather = Weather(0.2, 0.3, 0.5, 0.1, 50.0)
    ours, theirs = stream(network, "a", "b")
    heard: list[int] = []
    theirs.on_frame = lambda data: heard.append(int(data))
    for k in range(300):
        ours.send(b"%d" % k)
    world.run_until(1000, lambda: None)
    assert 150 < len(set(heard)) < 290
    assert len(heard) > len(set(heard))
    assert heard != sorted(heard)


def test_a_damaging_link_changes_frames_in_every_way() -> None:
    network = Network(World(7))
    network.weather = Weather(mangle=1.0)
    frame = bytes(range(1, 201))
    found = [network.carried(frame) for _ in range(100)]
    assert network.mangled == 100
    assert {len(data) < 200 for data in found} == {True, False}, "some bytes are lost"
    assert any(len(data) > 200 for data in found), "some come twice"
    assert any(0 in data for data in found), "some are blank"
    assert any(data != frame and sorted(data) == sorted(frame) for data in found), "or elsewhere"


# -- the checkers see planted faults ---------------------------------------------------------------

KEY = ("T", 0)


def sent(outcome: str = "ok") -> History:
    history = History()
    history.sends = [
        Send(KEY, [b"a"], 0, outcome, [(KEY, 0)], 0.0, 1.0),
        Send(KEY, [b"b"], 1, "ok", [(KEY, 1)], 1.0, 2.0),
    ]
    history.reads = [Read(KEY, 0, (b"a",), 3.0)]
    history.seen = {(KEY, 0): b"a"}
    return history


@pytest.mark.parametrize(
    ("bodies", "outcome", "why"),
    [
        ([b"a", b"b"], "ok", ""),
        ([b"a"], "ok", "acknowledged b'b' is not stored"),
        ([b"b", b"a"], "ok", "b'a' is not at offset 0"),
        ([b"x", b"b"], "info", "was read at offset 0, and is not stored there"),
        ([b"a", b"b", b"a"], "ok", "stored twice"),
        ([b"a", b"b"], "weak", ""),
        ([b"x", b"b"], "weak", "was read at offset 0, and is not stored there"),
        ([b"b"], "weak", "b'b' is not at offset 1, but at 0"),
        ([b"b", b"a"], "weak", "b'a' is not at offset 0, but at 1"),
        ([b"a", b"b"], "fail", "b'a' is stored, and no send that may have stored it"),
    ],
)
def test_lost_swapped_changed_doubled_and_refused_messages_are_detected(
    bodies: list[bytes], outcome: str, why: str
) -> None:
    with pytest.raises(Violation, match=why) if why else contextlib.nullcontext():
        checks.linearizable({KEY: [*enumerate(bodies)]}, sent(outcome))


def test_offsets_with_a_gap_are_detected() -> None:
    with pytest.raises(Violation, match="gaps"):
        checks.dense({KEY: [(0, b"a"), (2, b"b")]})


def test_one_offset_with_two_values_is_detected() -> None:
    history = sent()
    with pytest.raises(Violation, match="offset 0"):
        history.saw(KEY, 0, b"other", "b")


def begun() -> Cluster:
    """Three nodes that run, with the roles given by hand."""
    cluster = Cluster(1, elected=False)
    cluster._start()
    return cluster


def test_an_acknowledgement_that_too_few_replicas_hold_is_detected() -> None:
    node = begun().nodes[0]
    ghost = Ghost(2, False)
    barrier = b'"epoch":1'  # a master's log begins with it
    with pytest.raises(Violation, match="held by"):
        ghost.acknowledged(node, barrier)
    with pytest.raises(Violation, match="not in its log"):
        ghost.acknowledged(node, b"never sent")


def test_the_end_of_a_log_is_found_in_its_bytes() -> None:
    node = begun().nodes[0]
    end = node.store.log.max_offset
    assert node.bytes.end() == end == node.bytes.record_end(b'"epoch":1')
    last = node.store.log.queue.files[0]
    last.wrote -= 8
    with pytest.raises(Violation, match="says its log ends at"):
        node.ghost.witness.check(node, node.bytes.end())
    last.wrote += 8
    last.memory[:end] = 0
    assert node.bytes.end() == 0


def test_an_unsafe_confirm_offset_is_detected_on_any_node() -> None:
    cluster = begun()
    cluster.world.run_until(500, lambda: None)
    for node in cluster.nodes:
        cluster.ghost.check(node)
        node.store.checkpoint.confirm_phy_offset = len(cluster.ghost.safe) + 1
        with pytest.raises(Violation, match="takes"):
            cluster.ghost.check(node)


def test_a_flushed_offset_that_the_disk_does_not_have_is_detected() -> None:
    node = begun().nodes[0]
    node.store.log.queue.flushed_where = node.store.log.max_offset
    for inode in node.disk.inodes(True).values():
        inode.durable[:] = 0
    with pytest.raises(Violation, match="flushed"):
        node.ghost.witness._flushed_is_true(node)


def test_a_promised_epoch_that_is_not_on_disk_is_detected() -> None:
    node = begun().nodes[0]
    assert node.master is not None
    node.master.identity = replace(node.master.identity, promised_epoch=Epoch(9))
    with pytest.raises(Violation, match="its disk has"):
        node.ghost.witness.check(node, node.bytes.end())


def test_a_log_that_differs_is_detected() -> None:
    cluster = Cluster(2, planned=[])
    assert cluster.run().violation == ""
    log = cluster.nodes[1].store.log
    log.queue.files[0].memory[50] ^= 1
    assert isinstance(log.queue.files[0].memory, np.ndarray)
    master = known(cluster.keeper.master)
    with pytest.raises(Violation, match="is not that of"):
        checks.equal_logs(cluster.nodes, master)
