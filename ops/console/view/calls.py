"""The calls that pages and actions make, by address: only who may make them all is shown a link.

Rules: they are written here alone. A name that an address does not have stays empty: it stands for
any name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from duolog._requests import checked_request
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message_factory import GetMessageClass

from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.inspection.deadletters.redelivery import group_of
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.metadata import AUDIT_TOPIC

Call = tuple[str, bytes]  # a method, and its request
Names = Mapping[str, object]  # those in an address
Asks = Callable[[Names], Call]

TOLD = ("topic", "group", "producers", "selected")  # names that calls depend on


def _call(method: str, **fields: object) -> Call:
    service, _, name = method.partition("/")
    described = wire.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    request = checked_request(GetMessageClass(described.input_type), **fields)
    return method, request.SerializeToString(deterministic=True)


def sees_topic(topic: str) -> Call:
    """Look at a topic."""
    return _call("Admin/ListTopics", topics=[topic])


def reads(topic: str) -> Call:
    """Read messages of a topic."""
    return _call("Messages/Pull", topic=topic)


def commits(group: str, topics: Sequence[str]) -> Call:
    """Commit offsets of a group."""
    return _call("Groups/Commit", group=group, offsets=[{"topic": topic} for topic in topics])


def _text(names: Names, name: str) -> str:
    return str(names.get(name, ""))


def _of(method: str, *fields: str) -> Asks:
    """A call whose request has some names of the address."""
    return lambda names: _call(method, **{name: _text(names, name) for name in fields})


def _letters(names: Names) -> Call:
    return reads(dead_letter_topic(_text(names, "group")))


def _remembers(names: Names) -> Call:
    """A group of its own remembers what was sent again; not of letters that were selected."""
    if "selected" in names:
        return _letters(names)
    group = _text(names, "group")
    topics = [dead_letter_topic(group)]
    return _call("Groups/Heartbeat", group=group_of(group), topics=topics)


def _sees(names: Names) -> Call:
    return sees_topic(_text(names, "topic"))


_READS = _of("Messages/Pull", "topic")
_SENDS = _of("Messages/Append", "topic")
_DESCRIBES = _of("Admin/DescribeGroup", "group")
_STATUS = _of("Admin/ClusterStatus")
_DRAINS = _of("Admin/Drain")
CALLS: Mapping[str, Iterable[Asks]] = {
    at.DOCTOR: (_STATUS,),
    at.TOPIC: (_sees,),
    at.TAIL: (_READS,),
    at.MESSAGE: (_READS,),
    at.GROUP: (_DESCRIBES,),
    at.DEAD: (_letters,),
    at.DEAD_EXPORT: (_letters,),
    at.MESSAGES: (_READS,),
    at.WAY: (lambda names: _call("Admin/Track", topic=_text(names, "topic"), key="any"),),
    at.RIGHTS: (_of("Access/ListUsers"),),
    at.AUDIT: (lambda names: reads(AUDIT_TOPIC),),
    at.TOPIC_CREATE: (_of("Admin/CreateTopic", "topic"),),
    at.TOPIC_ALTER: (_sees, _of("Admin/AlterTopic", "topic")),
    at.TOPIC_DELETE: (_sees, _of("Admin/DeleteTopic", "topic")),
    at.MESSAGE_SEND: (_SENDS,),
    at.MESSAGE_AGAIN: (_READS, _SENDS),
    at.GROUP_RESET: (_DESCRIBES, _of("Admin/ResetGroup", "group")),
    at.GROUP_DELETE: (_DESCRIBES, _of("Admin/DeleteGroup", "group")),
    at.GROUP_REDELIVER: (_letters, _of("Messages/Append"), _remembers),
    at.DELAYED_RECALL: (_of("Admin/RecallDelayed", "topic"),),
    at.HALF_DECIDE: (lambda names: _call("Admin/DecideHalf", group=_text(names, "producers")),),
    at.NODE_SWITCH: (_STATUS, _of("Admin/Failover")),
    at.NODE_DRAIN: (_STATUS, _DRAINS),
    at.NODE_FORGET: (_STATUS, _of("Admin/Forget")),
    at.NODE_UNDRAIN: (_STATUS, _DRAINS),
}


def calls_of(pattern: str, names: Names) -> Sequence[Call]:
    """The calls of a page or an action; none where everybody may make them. Raises BadRequest."""
    return [asks(names) for asks in CALLS.get(pattern, ())]
