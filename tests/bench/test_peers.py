"""The comparison with peers: what it says of samples, and what becomes of peers that fail.

The peers here are two-line programs; only the last test starts real nodes.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from bench.peers import __main__ as program
from bench.peers import maven, serving
from bench.peers.clients.program import Arrivals, Turn, read
from bench.peers.figures import Cell, Cells, Sample, Spread, best, fill_equal, runs_for
from bench.peers.kafka import _ConsumerLines, _ProducerLines
from bench.peers.limits import NEW_PAGES
from bench.peers.others import OthersTime
from bench.peers.page import Circumstances, Report, cell_text, page, table
from bench.peers.peer import (
    Began,
    ClientProgram,
    Facts,
    Measured,
    PeerFailed,
    Server,
    Unavailable,
    Work,
)
from bench.peers.rounds import TIME_OVER, Outcome, Rounds
from bench.peers.rows import BY_NAME, FULL, ROWS, Kind, Scale

SERVER = "import time; time.sleep(600)"
ANSWER = "print('began', flush=True); print('ended 1000 0.5 250 900', flush=True)"
SMALL = Scale(rounds=3, seconds=0.0, consumed=0.001, recovered_bytes=1000 << 10)
PLAIN = Facts("A peer", (), (), consumed=1_000_000)
Programs = Mapping[Kind, str]


@dataclass(frozen=True)
class FakeServers:
    """Sleeping processes, and clients that print what a test wants."""

    processes: Sequence[ChildProcess]
    programs: Programs

    def client(self, work: Work) -> ClientProgram:
        text = self.programs.get(work.kind, ANSWER)
        return ClientProgram([sys.executable, "-ISc", text], read)


@dataclass
class FakePeer:
    """A peer of two-line programs."""

    name: str = "fake"
    programs: Programs = field(default_factory=dict)
    server: str = SERVER
    facts: Facts = PLAIN
    missing: str = ""
    started: list[ChildProcess] = field(default_factory=list)
    roots: list[Path] = field(default_factory=list)

    def prepare(self) -> dict[str, str]:
        if self.missing:
            raise Unavailable(self.missing)
        return {self.name: "1.0"}

    def servers(self, root: Path, replicated: bool) -> FakeServers:
        server = Server("server", [sys.executable, "-ISc", self.server], root / "server.log")
        self.started.append(server)
        self.roots.append(root)
        return FakeServers([server], self.programs)


def no_limits(scale: Scale) -> dict[str, float]:
    return {"tcp_throughput": 1000.0}


def outcome_of(*peers: FakePeer, rows: str = "post_small,single", scale: Scale = SMALL) -> Outcome:
    until = time.monotonic() + 600
    return Rounds(peers, program.chosen_rows(rows), scale, until, limits=no_limits).run()


def nothing_is_left(peer: FakePeer) -> bool:
    return not any(p.running for p in peer.started) and not any(r.exists() for r in peer.roots)


def report_of(
    outcome: Outcome, *peers: FakePeer, scale: Scale = FULL, others: float = 0.01
) -> Report:
    machine = {"cpu": "C", "cores": 2, "kernel": "6", "python": "3", "commit": "abc"}
    return Report(peers, ROWS, scale, outcome, Circumstances(machine, others, 60.0, True))


# -- samples -------------------------------------------------------------------------------------


def test_a_cell_shows_the_median_and_its_spread_and_both_percentiles() -> None:
    assert Spread.of([30.0, 10.0, 20.0]) == Spread(20.0, 10.0, 30.0)
    assert Spread.of([1.0, 3.0]).median == 2.0
    row = BY_NAME["post_small"]
    assert cell_text(Cell([Sample(1234567.0)]), row, False) == "1,234,567"
    cell = Cell([Sample(3.0), Sample(1.0), Sample(2.0)])
    assert cell_text(cell, row, True) == "**2 (1–3)**"
    assert cell_text(Cell(reasons=["why"]), row, False) == "-"
    cell = Cell([Sample(100.0, 900.0), Sample(300.0, 700.0), Sample(200.0, 800.0)])
    text = cell_text(cell, BY_NAME["single"], False)
    assert text == "200 (100–300) / 800 (700–900)"


def test_the_best_is_the_most_of_a_rate_and_the_least_of_a_time() -> None:
    cells: Cells = {
        (peer, row): Cell([Sample(value)])
        for peer, value in (("a", 1.0), ("b", 2.0))
        for row in ("post_small", "single")
    }
    assert best(cells, BY_NAME["post_small"], ("a", "b", "c")) == "b"
    assert best(cells, BY_NAME["single"], ("a", "b", "c")) == "a"
    assert best(cells, BY_NAME["single"], ("a", "c")) is None


def test_rows_of_one_call_are_run_once_and_peers_name_real_rows() -> None:
    facts = Facts("", (), (), empty={"consume": "why"}, same_as={"batch_small": "post_small"})
    rows = [BY_NAME[name] for name in ("batch_small", "server_cpu_post", "consume")]
    assert [row.name for row in runs_for(facts, rows)] == ["post_small"]
    cells: Cells = {("p", "post_small"): Cell([Sample(5.0)])}
    fill_equal(cells, "p", facts)
    assert cells["p", "batch_small"] == Cell([Sample(5.0)], [], "post_small")
    for peer in program.PEERS:
        facts = peer.facts
        named = {*facts.empty, *facts.same_as, *facts.same_as.values()}
        assert named <= set(BY_NAME), peer.name
        assert not set(facts.empty) & set(facts.same_as), peer.name
        assert not set(facts.same_as.values()) & set(facts.same_as), peer.name
    assert len({peer.name for peer in program.PEERS}) == len(program.PEERS)


# -- what clients say ----------------------------------------------------------------------------


def test_what_clients_and_kafkas_tools_say_is_read() -> None:
    assert isinstance(read("began\n"), Began)
    assert read("ended 10 0.5 1.5 2.5\n") == Measured(10, 0.5, 1.5, 2.5)
    assert read("\n") is None
    assert read("not yet: an error\n") is None
    lines = _ProducerLines(1000)
    assert isinstance(
        lines.read("500 records sent, 99.8 records/sec (0.01 MB/sec), 1.0 ms avg latency\n"), Began
    )
    summary = (
        "1000 records sent, 2000.0 records/sec (0.19 MB/sec), 3.00 ms avg latency, 9.00 ms max "
        "latency, 2 ms 50th, 5 ms 95th, 6 ms 99th, 9 ms 99.9th.\n"
    )
    assert lines.read(summary) == Measured(1000, 0.5)
    with pytest.raises(PeerFailed, match="1000 records of 999"):
        _ProducerLines(999).read(summary)
    consumer = _ConsumerLines(Work(Kind.CONSUME, "t", messages=1000))
    consumer.read("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, ...\n")
    row = "2026-01-01 00:00:00:000, 2026-01-01 00:00:01:000, 0.1, 0.1, 1000, 900.0, 3, 500, 1, 2e3"
    assert consumer.read(row) == Measured(1000, 0.5)


def test_unconsumed_or_unacknowledged_messages_fail(capsys: pytest.CaptureFixture[str]) -> None:
    arrivals = Arrivals(10)
    assert not arrivals.add(4)
    assert arrivals.add(6)
    assert arrivals.measured().messages == 6
    arrivals.add(1)
    with pytest.raises(RuntimeError, match="consumed 11 messages of 10"):
        arrivals.measured()
    assert capsys.readouterr().out == "began\n"
    turn = Turn(0.0, messages=5)
    turn.sent = turn.portion(3)
    assert turn.more()
    turn.sent += turn.portion(3)
    assert not turn.more()
    assert turn.done(5).messages == 5
    with pytest.raises(RuntimeError, match="4 messages of 5"):
        turn.done(4)


def test_a_project_depends_on_the_artifacts() -> None:
    found = ElementTree.fromstring(maven.pom(["org.a:b:1.2", "org.a:c:3"]))
    names = [element.text for element in found.iter() if element.tag.endswith("artifactId")]
    assert names == ["peer", "b", "c"]


@pytest.mark.parametrize("before", ["nothing", "half of it", "all of it by another"])
def test_a_folder_of_jars_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    folder = tmp_path / "peers" / "some"
    if before == "half of it":
        folder.mkdir(parents=True)
        (folder / "half.jar").touch()
    runs = []

    def run(command: Sequence[str], seconds: float, failure: str) -> None:
        target = Path(command[-1].removeprefix("-DoutputDirectory="))
        assert target != folder, "nobody sees half of it"
        (target / "a.jar").write_text("ours")
        runs.append(command)

    @contextmanager
    def behind_another(place: Path, seconds: float) -> Iterator[None]:
        folder.mkdir(parents=True)
        for name in ("a.jar", "complete"):
            (folder / name).write_text("theirs")
        yield

    monkeypatch.setattr(maven, "HOME", tmp_path / "peers")
    monkeypatch.setattr(maven, "need", lambda *tools: None)
    monkeypatch.setattr(maven, "_run", run)
    theirs = before == "all of it by another"
    if theirs:
        monkeypatch.setattr(maven, "locked", behind_another)
    for _ in range(2):
        assert maven.jars("some", ["org.a:b:1.2"]) == folder
    assert len(runs) == (0 if theirs else 1)
    assert (folder / "a.jar").read_text() == ("theirs" if theirs else "ours")
    assert {path.name for path in (tmp_path / "peers").iterdir()} <= {"some", "maven.lock"}
    assert not (folder / "half.jar").exists()


# -- rounds --------------------------------------------------------------------------------------


def test_every_round_gives_a_sample_in_the_units_of_its_row() -> None:
    peer = FakePeer()
    outcome = outcome_of(peer, rows="post_small,batch_large,single,server_cpu_post,consume")
    assert [s.value for s in outcome.cells["fake", "post_small"].samples] == [2000.0] * 3
    assert outcome.cells["fake", "batch_large"].samples[0].value == pytest.approx(2.048)
    assert outcome.cells["fake", "single"].samples[0] == Sample(250.0, 900.0)
    assert len(outcome.cells["fake", "server_cpu_post"].samples) == 3
    assert outcome.cells["fake", "consume"].samples[0].value == 2000.0
    assert outcome.limits == {"tcp_throughput": [1000.0] * 3}
    assert outcome.versions == {"fake": {"fake": "1.0"}}
    assert not outcome.failed("fake")
    assert nothing_is_left(peer)
    # Kafka's tool tells its progress every 5 s, and nothing where it is done before.
    peer = FakePeer(programs={Kind.POST: "print('ended 1000 0.5 250 900', flush=True)"})
    outcome = outcome_of(peer)
    assert [s.value for s in outcome.cells["fake", "post_small"].samples] == [2000.0] * 3
    assert not outcome.failed("fake")


def test_pages_are_in_hand_before_a_client_sends_as_fast_as_it_can() -> None:
    outcome = outcome_of(FakePeer(), rows="post_small,single", scale=replace(SMALL, pages_bytes=1))
    assert len(outcome.limits[NEW_PAGES]) == 3
    assert NEW_PAGES not in outcome_of(FakePeer(), scale=SMALL).limits


def test_a_missing_peer_or_a_failing_client_costs_its_cells_alone() -> None:
    absent, present = FakePeer("absent", missing="no such package"), FakePeer()
    outcome = outcome_of(absent, present)
    assert outcome.skipped == {"absent": "no such package"}
    assert outcome.cells["absent", "single"] == Cell(reasons=["no such package"])
    assert len(outcome.cells["fake", "single"].samples) == 3
    assert not absent.started
    peer = FakePeer(programs={Kind.POST: "raise SystemExit('too many of them')"})
    outcome = outcome_of(peer)
    assert "too many of them" in outcome.cells["fake", "post_small"].reasons[0]
    assert "too many of them" in outcome.cells["fake", "server_cpu_post"].reasons[0]
    assert len(outcome.cells["fake", "single"].samples) == 3
    assert outcome.failed("fake")
    assert nothing_is_left(peer)


def test_a_server_that_dies_costs_the_rest_of_its_rows_and_nothing_else() -> None:
    # The client ends the server, as a crash would, and says nothing more.
    kills = "import os, signal, time; os.kill({}, signal.SIGKILL); time.sleep(600)"

    class Dying(FakePeer):
        def servers(self, root: Path, replicated: bool) -> FakeServers:
            found = super().servers(root, replicated)
            server = found.processes[0]

            class Late(FakeServers):
                def client(self, work: Work) -> ClientProgram:
                    text = ANSWER if work.kind is Kind.READY else kills.format(server.pid)
                    return ClientProgram([sys.executable, "-ISc", text], read)

            return Late(found.processes, {})

    dying, present = Dying("dying"), FakePeer()
    outcome = outcome_of(dying, present)
    for row in ("post_small", "single"):
        assert "server server died (-9)" in outcome.cells["dying", row].reasons[0]
    assert len(outcome.cells["fake", "single"].samples) == 3
    assert nothing_is_left(dying)


def test_a_client_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "DEADLINE_SECONDS", 3.0)
    hangs = "import time; print('began', flush=True); time.sleep(600)"
    peer = FakePeer(programs={Kind.SINGLE: hangs})
    outcome = outcome_of(peer, rows="single", scale=Scale(1, 0.0, 0.001, 1 << 20))
    assert "was too late" in outcome.cells["fake", "single"].reasons[0]
    assert nothing_is_left(peer)


def test_what_cannot_start_or_stores_too_little_is_a_reason() -> None:
    waits = {Kind.READY: "import time; time.sleep(600)"}
    outcome = outcome_of(FakePeer(programs=waits, server="raise SystemExit('port in use')"))
    assert "port in use" in outcome.cells["fake", "single"].reasons[0]

    class Broken(FakePeer):
        def servers(self, root: Path, replicated: bool) -> FakeServers:
            return FakeServers([Server("server", ["/no/such/program"], root / "server.log")], {})

    assert "cannot start server" in outcome_of(Broken()).cells["fake", "single"].reasons[0]
    peer = FakePeer(programs={Kind.FILL: ANSWER.replace("1000", "999")})
    outcome = outcome_of(peer, rows="consume")
    assert outcome.cells["fake", "consume"].reasons[0] == "stored 999 messages of 1,000"
    with pytest.raises(Unavailable, match="`no-such-program` is not installed"):
        maven.need("no-such-program")


def test_the_next_server_starts_when_the_one_before_listens(tmp_path: Path) -> None:
    listens = (
        "import socket, sys, time; time.sleep(0.3); s = socket.socket(); "
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(600)"
    )
    endpoint = free_endpoint()
    port = endpoint.rpartition(":")[2]
    first = Server("first", [sys.executable, "-ISc", listens, port], tmp_path / "first.log")
    first.endpoint = endpoint
    says = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('connected')"
    second = Server("second", [sys.executable, "-ISc", says], tmp_path / "second.log")

    class Two(FakePeer):
        def servers(self, root: Path, replicated: bool) -> FakeServers:
            return FakeServers([first, second], {})

    with serving.serving(Two(), tmp_path, False):
        assert second.process is not None
        assert second.process.wait(30) == 0
    assert second.log.read_text() == "connected\n"
    assert not first.running


def test_recovery_kills_the_server_and_starts_it_again_in_its_rounds() -> None:
    peer = FakePeer()
    outcome = outcome_of(peer, rows="recovery")
    found = outcome.cells["fake", "recovery"]
    assert found.reasons == []
    assert all(0 < sample.value < 30 for sample in found.samples)
    assert nothing_is_left(peer)
    peer = FakePeer(facts=Facts("", (), (), recovery_rounds=1))
    outcome = outcome_of(peer, rows="recovery,single")
    assert len(outcome.cells["fake", "recovery"].samples) == 1
    assert len(outcome.cells["fake", "single"].samples) == 3


def test_a_server_is_warmed_up_before_its_first_row() -> None:
    asked: list[Work] = []

    class Noted(FakePeer):
        def servers(self, root: Path, replicated: bool) -> FakeServers:
            class Asked(FakeServers):
                def client(self, work: Work) -> ClientProgram:
                    asked.append(work)
                    return super().client(work)

            return Asked(super().servers(root, replicated).processes, {})

    peer = Noted(facts=Facts("", (), (), server_warm_seconds=8.0))
    outcome = outcome_of(peer, rows="single", scale=Scale(1, 0.0, 0.001, 1 << 20, 0.5))
    assert [(work.kind, work.seconds) for work in asked] == [
        (Kind.READY, 0.0),
        (Kind.POST, 4.0),
        (Kind.SINGLE, 0.0),
    ]
    assert ("fake", "post_small") not in outcome.cells


def test_an_interrupt_ends_everything() -> None:
    peer = FakePeer()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    rounds = Rounds([peer], program.chosen_rows("single"), SMALL, time.monotonic() + 600)
    rounds.limits = no_limits
    rounds.record = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        rounds.run()
    assert peer.started
    assert nothing_is_left(peer)


def test_nothing_begins_when_the_time_is_over() -> None:
    peer = FakePeer()
    rounds = Rounds([peer], program.chosen_rows("single"), SMALL, time.monotonic() - 1)
    rounds.limits = no_limits
    outcome = rounds.run()
    assert outcome.cells["fake", "single"].reasons[0] == TIME_OVER
    assert outcome.failed("fake")
    assert not peer.started


def test_too_few_rounds_for_lack_of_time_are_not_a_failure() -> None:
    peer = FakePeer()
    rounds = Rounds([peer], program.chosen_rows("single"), SMALL, time.monotonic() + 600)

    def late(*_: object) -> None:
        rounds.until = 0.0
        rounds.outcome.cell("fake", "single").samples.append(Sample(1.0, 2.0))

    rounds.limits, rounds.record = no_limits, late  # type: ignore[method-assign, assignment]
    outcome = rounds.run()
    assert outcome.cells["fake", "single"] == Cell([Sample(1.0, 2.0)], [TIME_OVER] * 2)
    assert not outcome.failed("fake")


def test_another_peer_begins_each_round() -> None:
    order: list[str] = []

    class Noted(FakePeer):
        def servers(self, root: Path, replicated: bool) -> FakeServers:
            order.append(self.name)
            return super().servers(root, replicated)

    outcome_of(Noted("a"), Noted("b"), Noted("c"), rows="single")
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_processor_time_is_that_of_the_process() -> None:
    own = ChildProcess("own", [], Path("/dev/null"))
    assert serving.cpu_seconds(own) == 0.0
    found = [int(n) for n in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[11:13]]
    assert sum(found) / os.sysconf("SC_CLK_TCK") <= time.process_time() + 0.1


# -- page ------------------------------------------------------------------------------


def full_outcome(*names: str) -> Outcome:
    outcome = Outcome(limits={"tcp_throughput": [900.0, 1000.0, 1100.0]})
    for place, name in enumerate(names):
        outcome.versions[name] = {name: "1.0"}
        for row in ROWS:
            samples = [Sample(100.0 * (place + k + 1), 500.0) for k in range(3)]
            cell = Cell(samples if row.unit == "µs" else [Sample(s.value) for s in samples])
            outcome.cells[name, row.name] = cell
    return outcome


def test_the_table_has_a_column_a_peer_and_reasons_for_empty_cells() -> None:
    peers = FakePeer("duolog"), FakePeer("fake")
    lines = table(report_of(full_outcome("duolog", "fake"), *peers)).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert {line.count("|") for line in lines} == {4}
    assert lines[2] == "| 100 B, batch call, msg/s | 200 (100–300) | **300 (200–400)** |"
    facts = Facts("Known", ("a setting",), ("for it: much",), empty={"consume_each": "no call"})
    known, absent = FakePeer("known", facts=facts), FakePeer("absent", missing="not here")
    text = page(report_of(outcome_of(known, absent), known, absent))
    assert "- Known, consume 100 B, objects, one call a message: no call" in text
    assert text.count("not here") == 1
    assert "- A setting." in text
    assert "- Speaks for it: much." in text


def test_a_page_may_be_quoted_where_its_run_was_full_and_quiet() -> None:
    report = report_of(full_outcome("duolog"), FakePeer("duolog"))
    text = page(report)
    assert "not to be quoted" not in text
    assert "| TCP, one connection into an asyncio receiver, MB/s | 1,000 (900–1,100) |" in text
    assert "None." in text
    outcome, peer = full_outcome("duolog"), FakePeer("duolog")
    quick = page(report_of(outcome, peer, scale=SMALL))
    assert "not to be quoted: they are of a run of fewer rounds or of less time" in quick
    busy = page(report_of(outcome, peer, others=0.2))
    assert "a machine on which others worked at the same time" in busy
    assert "other programs used 20 % of the time of 2 cores" in busy
    rivals = FakePeer("duolog"), FakePeer("fake")
    assert "**" not in table(report_of(full_outcome("duolog", "fake"), *rivals, others=0.2))


def test_others_are_those_who_are_not_ours(tmp_path: Path) -> None:
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    stat.write_text("cpu  100 0 100 5000 70 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    others = OthersTime(stat)
    stat.write_text("cpu  100 0 100 9000 90 0 0 0 0 0\n")  # idle, and waiting for a disk
    assert others.share(2) == 0
    stat.write_text(f"cpu  100 0 {100 + 3600 * tick} 9000 90 0 0 0 0 0\n")
    assert others.share(2) == 1.0
    stat.write_text(f"cpu  100 0 100 9000 90 0 0 {3600 * tick} 0 0\n")  # taken by the host
    assert others.share(2) == 1.0


# -- the command ---------------------------------------------------------------------------------


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "duolog,none"], ["--rows", "none"]):
        with pytest.raises(SystemExit) as ended:
            program.main(words)
        assert ended.value.code == 2
        assert "unknown: none; there are" in capsys.readouterr().err
    assert program.chosen_rows("single,batch_small") == [BY_NAME["batch_small"], BY_NAME["single"]]
    assert len(program.chosen_peers("")) == len(program.PEERS)


@pytest.mark.parametrize(("failing", "status"), [("duolog", 1), ("fake", 0)])
def test_only_a_failure_of_duolog_itself_is_one_of_the_run(
    failing: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [
        FakePeer(name, {Kind.SINGLE: "raise SystemExit(3)"} if name == failing else {})
        for name in ("duolog", "fake")
    ]
    monkeypatch.setattr(program, "PEERS", tuple(peers))
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr(program, "limits_of_round", no_limits)
    docs = tmp_path / "docs"
    words = ["--quick", "--rows", "post_small,single", "--docs", str(docs)]
    assert program.main(words) == status
    (found,) = tmp_path.glob("peers-*/peers.json")
    cells = {(c["peer"], c["row"]): c for c in json.loads(found.read_text())["cells"]}
    assert cells[failing, "single"]["reasons"]
    assert cells["fake", "post_small"]["samples"]
    assert "2,000" in (docs / "peers.md").read_text()


@pytest.mark.long
def test_duologs_own_rows_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    assert program.main(["--quick", "--only", "duolog"]) == 0
    (found,) = tmp_path.glob("peers-*/peers.json")
    facts = json.loads(found.read_text())
    samples = {cell["row"]: cell["samples"] for cell in facts["cells"]}
    assert set(samples) == set(BY_NAME)
    assert all(len(found) == 1 and found[0]["value"] > 0 for found in samples.values())
    assert set(facts["limits"]) == {"grpc_unary_p50", "tcp_ping_pong_p50", "tcp_throughput"}
