"""Which messages a read takes from tiered files, and which from nodes. No Spark runs, no node."""

from pathlib import Path

import pytest
from duolog import BadRequest, QueueStats, TopicDescription
from duolog.spark._options import ReadOptions
from duolog.spark._plan import DataLoss, Planner, Queue, QueueRange, Ranges
from duolog.spark._reader import BatchReader, TierPart
from duolog.spark._schema import SCHEMA
from duolog.spark._tier import MANIFEST, Epochs, Span, manifest_text, merged, sources
from hypothesis import given
from hypothesis import strategies as st

EPOCHS: Epochs = {1: (0, "0a")}  # of the nodes' log
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple))
Spans = dict[int, list[Span]]  # by queue: one for each segment


def archive(root: Path, queues: Spans, group: str = "g", epochs: Epochs = EPOCHS) -> None:
    """A folder with manifests, and files of nothing."""
    folder = root / MANIFEST / group
    folder.mkdir(parents=True)
    number = 0
    for queue_id, spans in queues.items():
        for span in spans:
            path = f"{group}-{number}.parquet"
            (root / path).touch()
            held = {str(queue_id): span}
            file = {"path": path, "topic": "T", "rows": 1, "bytes": 0, "queues": held}
            log = {"epochs": [[n, *row] for n, row in epochs.items()]}
            manifest = {"group": group, "log": log, "rows": 1, "files": [file]}
            (folder / f"{number}.json").write_text(manifest_text(manifest))
            number += 1


def planned(
    monkeypatch: pytest.MonkeyPatch, root: Path, nodes: dict[int, Span], **options: str
) -> list[tuple[str, int, int, int]]:
    """What a read of topic T takes: where from, queue, and the offsets. nodes: their queues."""
    stats = [
        QueueStats(queue_id=queue_id, min_offset=low, max_offset=high)
        for queue_id, (low, high) in nodes.items()
    ]
    reply = TopicDescription("T", "g", queues=len(stats), stats=tuple(stats))
    monkeypatch.setattr(Planner, "topics", lambda planner: [reply])
    monkeypatch.setattr(Planner, "epochs", lambda planner, group: EPOCHS)
    given = {"endpoints": "127.0.0.1:1", "topic": "T", "tier": str(root), **options}
    found = []
    for partition in BatchReader(ReadOptions.of(given), SCHEMA).partitions():
        if isinstance(partition, TierPart):
            where, parts = "file", partition.file.ranges
        else:
            assert isinstance(partition, Ranges)
            where, parts = "node", partition.parts
        found += [(where, part.queue.queue_id, part.start, part.end) for part in parts]
    return sorted(found, key=lambda part: part[1:])


@given(SPANS, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_each_offset_is_read_once_from_where_it_is(
    spans: list[Span], start: int, count: int, low: int, more: int
) -> None:
    queue = Queue("T", "g", 0)
    part = QueueRange(queue, start, start + count)
    found = sources(part, merged(spans), (low, low + more))

    def offsets(ranges: list[QueueRange]) -> list[int]:
        return [offset for each in ranges for offset in range(each.start, each.end)]

    wanted = range(start, start + count)
    tiered = {offset for first, end in spans for offset in range(first, end)}
    on_nodes = set(range(low, low + more)) - tiered
    assert offsets(found.files) == [offset for offset in wanted if offset in tiered]
    assert offsets(found.nodes) == [offset for offset in wanted if offset in on_nodes]
    assert offsets(found.gone) == [o for o in wanted if o not in tiered and o not in on_nodes]


def test_messages_that_a_job_has_not_tiered_yet_are_read_from_the_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Segments are written in parallel: a job that dies leaves any of them undone."""
    archive(tmp_path, {0: [(10, 20), (30, 40)]})
    whole = [("node", 0, 0, 10), ("file", 0, 10, 20), ("node", 0, 20, 30)]
    assert planned(monkeypatch, tmp_path, {0: (0, 50)}) == [
        *whole,
        ("file", 0, 30, 40),
        ("node", 0, 40, 50),
    ]
    ends = {"startingOffsets": '{"T": {"0": 5}}', "endingOffsets": '{"T": {"0": 25}}'}
    assert planned(monkeypatch, tmp_path, {0: (0, 50)}, **ends) == [
        ("node", 0, 5, 10),
        ("file", 0, 10, 20),
        ("node", 0, 20, 25),
    ]


def test_a_hole_in_the_tier_that_nodes_cannot_fill_is_reported_and_hides_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive(tmp_path, {0: [(0, 20), (30, 40)]})
    with pytest.raises(DataLoss, match="T/0 no longer has messages 20 to 24"):
        planned(monkeypatch, tmp_path, {0: (25, 50)})
    assert planned(monkeypatch, tmp_path, {0: (25, 50)}, failOnDataLoss="false") == [
        ("file", 0, 0, 20),
        ("node", 0, 25, 30),
        ("file", 0, 30, 40),
        ("node", 0, 40, 50),
    ]
    # Nor what lies behind all that the nodes have.
    with pytest.raises(DataLoss, match="T/0 no longer has messages 25 to 29"):
        planned(monkeypatch, tmp_path, {0: (0, 25)})


def test_queues_that_only_files_have_are_read_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The topic was deleted, and made again with fewer queues."""
    archive(tmp_path, {0: [(0, 20)], 1: [(5, 9)]})
    assert planned(monkeypatch, tmp_path, {0: (20, 30)}) == [
        ("file", 0, 0, 20),
        ("node", 0, 20, 30),
        ("file", 1, 5, 9),
    ]
    with pytest.raises(BadRequest, match="does not name T/g/1"):
        planned(monkeypatch, tmp_path, {0: (20, 30)}, startingOffsets='{"T": {"0": 7}}')


def test_a_log_that_was_tiered_under_another_groups_name_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rows would be left out, for example after a forgotten `--group`."""
    archive(tmp_path, {0: [(0, 20)]}, "broker-a")
    with pytest.raises(BadRequest, match=r"'g' under the name 'broker-a': .* --group g, into"):
        planned(monkeypatch, tmp_path, {0: (20, 30)})


def test_another_clusters_group_in_the_same_folder_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive(tmp_path, {0: [(0, 20)]}, "broker-a", {1: (0, "0b")})
    archive(tmp_path, {0: [(0, 25)]})
    assert planned(monkeypatch, tmp_path, {0: (20, 30)}) == [
        ("file", 0, 0, 25),
        ("node", 0, 25, 30),
    ]
