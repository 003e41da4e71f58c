"""Each checker against a planted fault, because a checker that cannot fail checks nothing."""

import copy
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from duolog_server.chaos import checkers, linearizable, report
from duolog_server.chaos.__main__ import faults_of, parse
from duolog_server.chaos.history import FAIL, OK, UNKNOWN, Commit, Half, History, Poll, Send, Told
from duolog_server.chaos.links import Links
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.chaos.run import Failover, Result
from duolog_server.chaos.target import Unsupported
from duolog_server.chaos.timeline import BadTimeline, Fault, dumps, loads, plan

KEY = ("t", 0)


def a_history() -> History:
    """Three acknowledged sends, one of unknown fate that was stored, one that failed."""
    sends = [Send(0, f"m{k}", "t", 0, k, k + 0.5, OK, k) for k in range(3)]
    sends.append(Send(0, "m3", "t", 0, 3, 3.5, UNKNOWN))
    sends.append(Send(0, "m4", "t", 0, 4, 4.5, FAIL))
    rows = [(k, f"m{k}") for k in range(4)]
    drains = {node: {KEY: list(rows)} for node in "abc"}
    polls = [Poll(1, "t", 0, 2.0, 0, ["m0", "m1"]), Poll(1, "t", 0, 3.0, 2, ["m2"])]
    return History(sends, polls, drains)


def kinds(history: History) -> set[str]:
    return {found.kind for found in checkers.check(history)}


def test_a_history_without_faults_passes() -> None:
    assert checkers.check(a_history()) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (lambda rows: rows[:2], {"lost"}),  # it was acknowledged
        (lambda rows: [(0, "m1"), (1, "m0"), *rows[2:]], {"lost", "inconsistent"}),
        (lambda rows: [*rows, (4, "ghost")], {"unexpected"}),  # nobody sent it
        (lambda rows: [*rows, (4, "m0")], {"duplicated"}),
        (lambda rows: [*rows, (4, "m4")], {"aborted"}),  # its send failed, and it is read
        (lambda rows: [*rows[:3], (5, "m3")], {"gap"}),
    ],
)
def test_what_is_wrong_in_all_replicas_is_found(
    changed: Callable[[list[tuple[int, str]]], list[tuple[int, str]]], found: set[str]
) -> None:
    history = a_history()
    for queues in history.drains.values():
        queues[KEY] = changed(queues[KEY])
    assert kinds(history) == found


def test_a_message_that_one_replica_lacks_is_lost_there() -> None:
    history = a_history()
    history.drains["c"][KEY].pop()
    assert kinds(history) == {"differs"}  # nobody was told that m3 is stored
    history.drains["c"][KEY].pop()
    assert "lost" in kinds(history)


def test_an_offset_that_changed_its_message_is_inconsistent() -> None:
    history = a_history()
    history.polls.append(Poll(2, "t", 0, 1.0, 0, ["m9"]))
    history.sends.append(Send(0, "m9", "t", 0, 9, 9.5, UNKNOWN))
    assert "inconsistent" in kinds(history)


@pytest.mark.parametrize(("first", "kind"), [(3, "skipped"), (1, "backwards")])
def test_a_reader_that_skips_or_goes_back_is_detected(first: int, kind: str) -> None:
    history = a_history()
    history.polls[1] = Poll(1, "t", 0, 3.0, first, [f"m{first}"])
    assert kinds(history) == {kind}


def test_a_master_that_answers_after_it_was_replaced_is_detected() -> None:
    history = a_history()
    for send, epoch in zip(history.sends, (4, 5, 4), strict=False):
        send.epoch = epoch
    assert kinds(history) == {"deposed"}
    history.sends[2].begin = history.sends[1].end  # it may have come before that answer
    assert kinds(history) == set()


def test_every_checker_has_a_planted_fault() -> None:
    tested = {"lost", "unexpected", "duplicated", "inconsistent", "aborted", "gap"}
    tested |= {"skipped", "backwards", "deposed", "differs"}
    tested |= {"not linearizable", "progress", "transactions", "rolled back and delivered"}
    tested |= {"committed and not delivered", "decision refused"}
    table = [row for row in (checkers.__doc__ or "").splitlines() if "|" in row]
    told = {row.split("|")[1].strip() for row in table}
    heads = {word for word in told if word.startswith(("finding", "found there", "---"))}
    assert told - heads == tested


# -- a group and transactions ----------------------------------------------------------------------


def with_a_group() -> History:
    """The same, with a group that has read three messages, and transactions of all kinds."""
    history = a_history()
    history.commits = [Commit("t", 0, 2, 2.0, 2.1, OK), Commit("t", 0, 3, 3.0)]
    history.told = [Told("t", 0, 2, 2.2, 2.3), Told("t", 0, 3, 4.0, 4.1)]
    history.transacted = ("tx", 0)
    history.halves = [
        Half("t1", True, False, 1.0, OK, 1.1, 1.2, OK),
        Half("t2", False, False, 2.0, OK, 2.1, 2.2, OK),
        Half("t3", True, True, 3.0, OK, asked=4.0),
        Half("t4", False, True, 3.0, OK, asked=4.0),
        Half("t5", True, False, 5.0),  # it is unknown whether it was stored
    ]
    for queues in history.drains.values():
        queues["tx", 0] = [(0, "t1"), (1, "t3")]
    return history


def decided(history: History) -> set[str]:
    return {found.kind for found in linearizable.findings(history)}


def test_a_group_and_transactions_without_faults_pass() -> None:
    history = with_a_group()
    assert (decided(history), kinds(history)) == (set(), set())
    for queues in history.drains.values():
        queues["tx", 0].append((2, "t5"))
    assert decided(history) == set()


@pytest.mark.parametrize("offset", [1, 2, -1])
def test_a_committed_offset_that_goes_back_is_detected(offset: int) -> None:
    history = with_a_group()
    history.commits[1].outcome, history.commits[1].end = OK, 3.1
    assert decided(history) == set()
    history.told.append(Told("t", 0, offset, 5.0, 5.1))  # after a failover
    assert decided(history) == {"progress"}


def test_a_commit_whose_answer_was_lost_may_take_place_once() -> None:
    history = with_a_group()
    history.told[1] = Told("t", 0, 2, 4.0, 4.1)
    assert decided(history) == set()
    history.told = [Told("t", 0, 3, 3.5, 3.6), Told("t", 0, 2, 4.0, 4.1)]
    assert decided(history) == {"progress"}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(0, "t1")], {"committed and not delivered"}),
        ([(0, "t3")], {"committed and not delivered", "transactions"}),
        ([(0, "t1"), (1, "t3"), (2, "t2")], {"rolled back and delivered"}),
        ([(0, "t1"), (1, "t3"), (2, "t4")], {"rolled back and delivered"}),
        ([(0, "t1"), (1, "t3"), (2, "t1")], {"transactions"}),
        ([(0, "t3"), (1, "t1")], {"transactions"}),  # t1 was delivered before t3 was asked about
        ([(0, "t1"), (1, "t3"), (2, "t9")], {"transactions"}),
    ],
)
def test_a_transaction_is_delivered_as_it_was_decided(
    rows: list[tuple[int, str]], found: set[str]
) -> None:
    history = with_a_group()
    for queues in history.drains.values():
        queues["tx", 0] = rows
    assert decided(history) == found


def test_a_decision_that_is_refused_is_a_finding() -> None:
    history = with_a_group()
    history.halves[0].decided = FAIL
    assert decided(history) == {"decision refused"}


def test_a_run_in_which_a_kind_of_call_never_succeeded_proves_nothing() -> None:
    history = with_a_group()
    assert all(history.other_outcomes().values())
    history.told.clear()
    never = [kind for kind, count in history.other_outcomes().items() if not count]
    assert never == ["offsets_told"]


# -- timelines, reports ----------------------------------------------------------------------------


def test_a_timeline_round_trips_and_its_faults_are_pending() -> None:
    faults = plan({"kill": 3, "cut_one_way": 2}, 7, shuffle=True)
    assert plan({"kill": 3, "cut_one_way": 2}, 7, shuffle=True) == faults
    struck = [Fault("kill", struck=1.0, undone=2.0, hit="a")]
    assert loads(dumps([*faults, *struck])) == [*faults, Fault("kill")]


def test_stalls_are_about_as_long_as_a_lease_and_cuts_meet_single_links() -> None:
    words = ["--stall", "40", "--cut-one-way", "40", "--lasts", "9", "--lease", "5"]
    faults = faults_of(parse(words))
    stalls = [fault.lasts / 5 for fault in faults if fault.kind == "stall"]
    assert 0.6 <= min(stalls) < 0.9 < 1.1 < max(stalls) <= 1.6
    cuts = {(fault.node, fault.other) for fault in faults if fault.kind == "cut_one_way"}
    assert {("master", "slave"), ("slave", "master")} <= cuts
    assert {other for _, other in cuts} == {"all", "etcd", "master", "slave"}


def test_a_cut_without_a_network_for_each_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no networks of their own"):
        ProcessTarget(tmp_path).cut("a", "b", both=False)


def test_a_target_that_stops_thaws_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run that was interrupted meanwhile could not even kill its node."""
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command))
    target = ProcessTarget(tmp_path)
    for node in "ab":
        target.hang_disk(node)
    target.free_hung_disk("a")
    del ran[:]
    target.stop()
    target.stop()
    assert ran == [["fsfreeze", "-u", str(tmp_path / "b")]]


def test_a_network_for_each_node_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unsupported, match="needs root"):
        Links(("a", "b")).start()


@pytest.mark.parametrize("text", ["", "{}", '{"faults": [{"kind": "flood"}]}', '{"faults": [3]}'])
def test_an_invalid_timeline_is_refused(text: str) -> None:
    with pytest.raises(BadTimeline):
        loads(text)
    with pytest.raises(BadTimeline):
        plan({"flood": 1}, 1, shuffle=False)


def test_the_report_shows_findings_faults_and_spans_without_an_answer() -> None:
    history = copy.deepcopy(a_history())
    result = Result(history, [Fault("kill", struck=1.0, undone=2.0, hit="<a>")], seconds=5.0)
    result.failovers.append(Failover("kill", 1.0, 3.25))
    result.epochs.append((0.0, 1, "a"))
    result.findings = [checkers.Finding("lost", 1, ("m0 is not there",))]
    page = report.page(result, "a run")
    for text in ("FAILED", "lost: 1", "p50 3.25 s", "&lt;a&gt;", "<svg", "no answer for 1.00 s"):
        assert text in page
    result.findings = []
    result.invalid = "a fault did not happen"
    result.refusals = ["no node can take over"] * 2
    page = report.page(result, "a run")
    assert "invalid: a fault did not happen" in page
    assert "2 no node can take over" in page
    assert not result.passed
