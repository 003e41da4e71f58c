"""What an operator who orders a move can get wrong."""

from dataclasses import replace

import pytest
from duolog import _errors as sdk

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.groupstate import FEATURES, GroupState, Member, Registration, Replica, View
from duolog_server.ha.registry import Row
from duolog_server.node.moving.moveservice import Progress
from duolog_server.node.moving.refusals import Source, Wanted, check, joined
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.moves import Guest, Moves, Place, Seal

HERE, THERE = "broker-a", "broker-b"


def group_of(node: str, *, features: tuple[str, ...] = FEATURES) -> View:
    """A replica group of one node, which leads."""
    replica = Replica(node, 1)
    row = Registration(replica, f"{node}:1", f"{node}:2", features)
    return View(
        state=GroupState("id", Epoch(1), replica, frozenset((replica,))),
        lock=Row(row.to_bytes(), 1, 1, 1),
        replicas={node: row},
    )


VIEWS = {HERE: group_of("n1"), THERE: group_of("n2")}
MOVES = Moves(
    seals={"T": {1: Seal(40, Place(THERE, 4), "broker-a-1-1")}},
    guests={
        "T": {
            4: Guest(Place(THERE, 2), Place(THERE, 2), "broker-b-1-1", 0),
            5: Guest(Place(THERE, 3), Place(THERE, 3), "broker-b-1-2"),
            6: Guest(Place(THERE, 3), Place(THERE, 3), "broker-b-1-3", revoked=True),
        }
    },
)
SOURCE = Source(HERE, TopicConfig("T"), MOVES, VIEWS, ())
UNDER_WAY = Progress(
    "T", 0, Place(HERE, 0), "broker-a-1-2", "RESERVING", THERE, -1, None, 5, 0.0, ""
)


@pytest.mark.parametrize("queue_id", [0, 3, 4])
def test_a_queue_that_takes_messages_may_move(queue_id: int) -> None:
    check(Wanted("T", queue_id, THERE), SOURCE)


@pytest.mark.parametrize(
    ("wanted", "source", "told"),
    [
        (("T", 0, THERE), replace(SOURCE, views={}), "broker_role is not AUTO"),
        (("T", 0, THERE), replace(SOURCE, config=TopicConfig("T", message_type="LITE")), "LITE"),
        *(
            ((name, 0, THERE), SOURCE, "belongs to the nodes")
            for name in ("%RETRY%g", "%DLQ%g", "DUOLOG_SYS_METADATA", "SCHEDULE_TOPIC_XXXX")
        ),
        *(
            (("T", queue, THERE), SOURCE, "has queues 0 to 3 there, and 4, which moved here")
            for queue in (-1, 7, 1 << 30)
        ),
        (("T", 4, THERE), replace(SOURCE, moves=Moves()), "the topic has queues 0 to 3 there$"),
        (("T", 1, THERE), SOURCE, "ends at offset 40: it moved to broker-b/4.*Move broker-b/4"),
        (("T", 5, THERE), SOURCE, "a move from broker-b/3 that has begun: it takes no messages"),
        (("T", 6, THERE), SOURCE, "a move from broker-b/3 that was given up"),
        (("T", 0, HERE), SOURCE, "is in replica group broker-a already"),
        (("T", 0, ""), SOURCE, "no replica group ''; other groups of this cluster: broker-b"),
        (("T", 0, "x"), replace(SOURCE, views={HERE: VIEWS[HERE]}), "of this cluster: none"),
        (
            ("T", 0, THERE),
            replace(SOURCE, views={**VIEWS, THERE: replace(VIEWS[THERE], retiring=True)}),
            "replica group broker-b retires: it takes no queues",
        ),
        *(
            (
                ("T", 0, THERE),
                replace(SOURCE, views={**VIEWS, group: group_of("old", features=())}),
                f"nodes of replica group {group} have a version that knows no moves: old. Upgrade",
            )
            for group in (HERE, THERE)
        ),
    ],
)
def test_a_move_that_cannot_be_is_refused_with_what_to_do(
    wanted: tuple[str, int, str], source: Source, told: str
) -> None:
    with pytest.raises(sdk.BadRequest, match=told):
        check(Wanted(*wanted), source)


def test_a_member_of_an_older_version_counts_while_it_is_down() -> None:
    down = Member(Registration(Replica("gone", 2), "", ""), 7)
    views = {**VIEWS, THERE: replace(VIEWS[THERE], members={"gone": down})}
    with pytest.raises(sdk.BadRequest, match=r"broker-b have .*: gone\. .*duolog cluster forget"):
        check(Wanted("T", 0, THERE), replace(SOURCE, views=views))


def test_what_passes_is_no_bad_request() -> None:
    views = {**VIEWS, THERE: replace(VIEWS[THERE], lock=None)}
    with pytest.raises(sdk.Busy, match="broker-b has no master now"):
        check(Wanted("T", 0, THERE), replace(SOURCE, views=views))
    views = {**VIEWS, "broker-c": group_of("n3")}
    second = Wanted("T", 0, "broker-c")
    with pytest.raises(sdk.Busy, match=r"moves to broker-b already \(move broker-a-1-2, RESERVING"):
        check(second, replace(SOURCE, views=views, known=(UNDER_WAY,)))
    for over in ("ENDED", "DONE"):
        check(second, replace(SOURCE, views=views, known=(replace(UNDER_WAY, state=over),)))


def test_a_repeated_call_joins_the_move_that_it_asks_for() -> None:
    older = replace(UNDER_WAY, state="ENDED", began_ms=3, target="broker-c")
    known = (UNDER_WAY, older)
    assert joined(Wanted("T", 0, THERE), known) == UNDER_WAY
    done = replace(UNDER_WAY, state="DONE")
    assert joined(Wanted("T", 0, THERE), (done,)) == done
    for other in (Wanted("T", 0, "broker-c"), Wanted("T", 1, THERE), Wanted("U", 0, THERE)):
        assert joined(other, known) is None
    assert joined(Wanted("T", 0, THERE), (replace(UNDER_WAY, state="ENDED"),)) is None
