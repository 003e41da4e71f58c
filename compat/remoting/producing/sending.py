"""Sends: one message or a batch, stored with the verbs of the other APIs.

Messages that came at once are stored at once. As in RocketMQ, a message that is sent twice is
stored twice, even under one UNIQ_KEY: programs send an object again on purpose.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
from duolog import _errors as sdk
from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.compat.remoting.batches import read_batch, with_property
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import (
    LENGTHS_BYTES,
    NUMBER_MAX,
    BadRequest,
    Command,
    Serialization,
    with_lengths,
)
from duolog_server.compat.remoting.codec.headers import SendRequest, read_send
from duolog_server.compat.remoting.codec.messages import (
    END,
    LATER,
    PAIR,
    properties_text,
    property_of,
    without,
)
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.port.dispatcher import Begun, Peer, Served, Stored, tried
from duolog_server.compat.remoting.refusals import Refused, put_code
from duolog_server.compat.remoting.relay import Relay
from duolog_server.compat.remoting.routes import DEFAULT_TOPIC, reply_topic
from duolog_server.node.broker import Broker
from duolog_server.node.core.traffic import NORMAL
from duolog_server.node.deferred.redirect import fitting
from duolog_server.node.deferred.transactionservice import IMMUNITY_SECONDS_MAX
from duolog_server.node.engine.log import Outcome
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.moving.deliveries import PassedOn
from duolog_server.node.pop.retrytopics import RETRY_TIMES, WAITING_BYTES
from duolog_server.node.runtime.clocks import TIME_MS_MAX
from duolog_server.node.service.sends import Placed, Send
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadMessage
from duolog_server.store.grouptopics import dead_letter_topic, group_of, group_retry_topic
from duolog_server.store.kernels.encode import FIELD_FLAG, FIELDS
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import PutBatch, PutResult, Singles, SinglesResult
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.record import (
    KEPT_FLAGS,
    PROPERTIES_BYTES_MAX,
    SENT_PROPERTIES_BYTES_MAX,
    Host,
    decode_properties,
    few_message_ids,
    offset_message_id,
    offset_message_ids,
)
from duolog_server.store.status import PutMessageStatus

PATIENCE_MS = 1000  # of a refusal while the group is changing its master; clients wait for 3 s
INNER_BATCH = 0x80
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
# The header of the answer to a message that is stored, as `_told` writes it.
_STORED = (
    Command(RequestCode.SEND_MESSAGE_V2, NUMBER_MAX)
    .answer(0, "", {"msgId": "%s", "queueId": "%d", "queueOffset": "%d", **REGION})
    .head()[LENGTHS_BYTES:]
    .decode()
    .replace(f"{NUMBER_MAX}", "%d")
)
RECONSUME_TIMES_MAX = 1 << 30  # so that a copy, which counts one more, can still be stored
_WAITING = (*LATER, b"TRAN_MSG")
_WAITING_MARKS = tuple(name + PAIR for name in _WAITING)
# The names of which each of the others has one in it.
_WAITING_WORDS = tuple(name for name in _WAITING if sum(one in name for one in _WAITING) == 1)
_ASKS = b"REPLY_TO_CLIENT\x01"
_PRIORITY = b"_SYS_MSG_PRIORITY_"
_REGION = b"MSG_REGION\x01" + REGION["MSG_REGION"].encode()
_REGION_ROOM = SENT_PROPERTIES_BYTES_MAX - len(END + _REGION)  # a client may use all of the limit
_ORIGIN = (b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID")  # of a dead letter: the node says it
_SENT_BACK = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
# All that `_check` looks for in properties, beside `WAIT`; they have no separator at the end.
_MEANINGS = re.compile(
    b"\x01(?:\x02|\\Z)|RETRY_TOPIC|DLQ_ORIGIN_|MSG_REGION|"
    + b"|".join((_ASKS, _PRIORITY, *_WAITING_WORDS))
)
_UNSAID_OF_ALL = (b"WAIT",)
_LAST = b"\x02WAIT\x01true"  # of the Java client, mostly
_UNSAID_SENT_BACK = (*_UNSAID_OF_ALL, *_ORIGIN)
_UNSAID = (b"WAIT", b"RETRY_TOPIC", *_ORIGIN)


class _Told(NamedTuple):
    """Fields of an answer."""

    request: Command
    queue_id: int
    transaction_id: str

    def bare(self) -> "_Told":
        """Drop the request's messages, which are stored, for an answer that waits."""
        return self._replace(request=self.request.bare())


class _Single(NamedTuple):
    """A checked request with one message that nothing delays. numbers: of its record, in the order
    of the kernel's. text: its properties.
    """

    told: _Told
    topic: str
    numbers: tuple[int, ...]
    text: bytes


class _Put(NamedTuple):
    """Another checked request. given_up: of a dead letter, the topic that it was sent to, and the
    group.
    """

    placed: Placed
    told: _Told
    given_up: tuple[str, str] | None


class Sending:
    """Stores what producers send.

    Attributes:
        host: where clients look a message up by the id that an answer tells.
    """

    def __init__(self, broker: Broker, sight: Sight, host: Host, relay: Relay) -> None:
        """relay: passes requests on to a master that was elected meanwhile."""
        self._broker = broker
        self._sight = sight
        self.host = host
        self._core = broker.core
        self._sends = broker.sends
        self._log = broker.log
        self._relay = relay
        self._reply_topic = reply_topic(broker.node.cluster)
        self._cluster = b"CLUSTER\x01" + broker.node.cluster.encode()
        self._turn = count()
        self._template: Command | None = None  # of the last send, and its header
        self._header: SendRequest | None = None

    def send(self, peer: Peer, request: Command) -> Begun:
        """SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE. Raises what refusals know."""
        header = read_send(request.code, request.fields)
        closed = self._core.admission.refused_put()
        if closed is None:
            return self._attempt(peer, request, header)
        told = self._broker.replication.refusals.told_later(PATIENCE_MS)
        if told is None:
            return self._closed(request, closed)
        return self._when_told(peer, request, header, told)

    async def _when_told(
        self, peer: Peer, request: Command, header: SendRequest, told: Outcome
    ) -> Command:
        """Once more, when it is settled who takes puts."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.shield(told)  # also where this client goes
        closed = self._core.admission.refused_put()
        if closed is not None:
            if self._relay.takes(peer, request):
                return await self._relay.pass_on(peer, request, loop.time() - began)
            return self._closed(request, closed)
        begun = self._attempt(peer, request, header)
        return begun if isinstance(begun, Command) else await begun

    @property
    def stores_at_once(self) -> bool:
        """Whether messages may be stored together: not where spans are exported, of each."""
        return self._log.traces is None and self._core.admission.refused_put() is None

    def send_each(self, peer: Peer, requests: Sequence[Command]) -> list[Served]:
        """The same for requests that came at once: messages to one topic are stored together.

        To be called where `stores_at_once`.
        """
        found: list[Served] = []
        singles: list[_Single] = []
        template, config = None, None
        for request in requests:
            if request.template is not template:
                template = request.template
                config = None if template is None else self._config_of(template)
            checked: _Single | _Put | Exception | None = None
            if config is not None:
                checked = self._as_others(request, config)
            if checked is None:
                checked = tried(self._read, peer, request)
            if singles and not (isinstance(checked, _Single) and checked.topic == singles[0].topic):
                found += self._store(peer, singles)
                singles = []
            if isinstance(checked, _Single):
                singles.append(checked)
            else:
                found.append(tried(self._put, checked) if isinstance(checked, _Put) else checked)
        return found + self._store(peer, singles)

    def _config_of(self, template: Command) -> TopicConfig | None:
        """The topic of all requests of a template; None where each is to be checked by itself."""
        if template is not self._template:
            self._template, self._header = template, _plain_header(template)
        header = self._header
        if header is None or self._core.throttle.on:
            return None
        if header.topic not in self._core.metadata.topics:
            return None
        found = tried(self._writable, header)
        return None if isinstance(found, Exception) else found

    def _as_others(self, request: Command, config: TopicConfig) -> _Single | None:
        """`_check` where all that it asks was asked of the template; None where there is more."""
        fields, header = request.fields, self._header
        queue_id, born = int(fields["e"]), int(fields["g"])
        text = fields["i"].encode().rstrip(END)
        if header is None or queue_id >= config.queues or born > TIME_MS_MAX:
            return None
        if _MEANINGS.search(text):
            return None
        text = _with_region(without(text.removesuffix(_LAST), *_UNSAID_OF_ALL))
        numbers = _numbers(header, born, queue_id)
        return _Single(_Told(request, queue_id, ""), config.name, numbers, text)

    def _read(self, peer: Peer, request: Command) -> _Put | _Single:
        return self._checked(peer, request, read_send(request.code, request.fields))

    def _checked(self, peer: Peer, request: Command, header: SendRequest) -> _Put | _Single:
        try:
            return self._check(peer, request, header)
        except Exception as error:
            self._sends.refused(error)
            raise

    def _attempt(self, peer: Peer, request: Command, header: SendRequest) -> Begun:
        checked = self._checked(peer, request, header)
        return self._put(checked if isinstance(checked, _Put) else _alone(peer, checked))

    def _put(self, put: _Put) -> Begun:
        result, waiting = self._sends.put(put.placed)
        if result.count and put.given_up is not None:
            size = len(put.placed.batch.columns.bodies)
            self._core.traffic.dead.add(put.given_up, result.count, size)
        self._log.stored(waiting)
        told = put.told
        if waiting is None:
            return self._answer(told, result)
        bare = told.bare()
        return Stored(
            waiting,
            bare.request,
            lambda status: self._answer(bare, replace(result, status=status)),
        )

    def _store(self, peer: Peer, singles: Sequence[_Single]) -> list[Served]:
        """Store messages of one topic, at once if possible; else each has its error."""
        if len(singles) > 1:
            batch = _together(peer, singles)
            result, waiting = self._sends.put_singles(batch)
            if result.places:
                return list(self._stored(singles, result, waiting))
        return [tried(self._put, _alone(peer, one)) for one in singles]

    def _stored(
        self, singles: Sequence[_Single], result: SinglesResult, waiting: Outcome | None
    ) -> Iterator[Begun | bytes]:
        ids = few_message_ids(self.host, result.places)
        for single, offset, message_id in zip(singles, result.queue_offsets, ids, strict=True):
            told = single.told
            if waiting is None and told.request.serialization == Serialization.JSON:
                header = _STORED % (told.request.opaque, message_id, told.queue_id, offset)
                yield with_lengths(header.encode())
            elif waiting is None:
                yield self._told(told, offset, message_id, result.status)
            else:
                bare = told.bare()
                answer = partial(self._told, bare, offset, message_id)
                yield Stored(waiting, bare.request, answer)

    # -- what is stored ------------------------------------------------------------------------

    def _check(self, peer: Peer, request: Command, header: SendRequest) -> _Put | _Single:
        _check_numbers(header)
        given_up = self._given_up(header)
        if given_up is not None:
            header = _dead_letter(header, *given_up)
        config = self._writable(header)
        queue_id = self._queue(header, config)
        unsaid = _unsaid(header.topic, given_up is not None)
        if header.sys_flag & INNER_BATCH:
            raise BadMessage("inner batches are not supported")
        in_batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        if in_batch:
            batch, text = self._batch(peer, request, header, queue_id, unsaid), b""
            if batch.columns.count == 1:
                text = batch.columns.properties.tobytes()
        else:
            text = self._answerable(without(properties_text(header.properties), *unsaid))
            text = _with_region(text)
            queue_id = _of_priority(text, queue_id, config.queues)
            numbers = _numbers(header, header.born_timestamp, queue_id)
            single = _Single(_Told(request, queue_id, ""), config.name, numbers, text)
            sent_back = header.topic.startswith(_SENT_BACK)
            if not sent_back and not _may_wait(text):
                self.charge(peer, config.name, len(request.body) + len(text), 1)
                return single
            batch = _alone(peer, single).placed.batch
            if sent_back:
                batch = self._sent_back(batch)
        transaction = ""
        if not in_batch and _is_half(header, text):
            seconds = _number(text, b"CHECK_IMMUNITY_TIME_IN_SECONDS")
            seconds = max(0, min(seconds, IMMUNITY_SECONDS_MAX))
            send = Send(batch, half_of=header.producer_group, immunity_seconds=seconds)
            transaction = property_of(text, b"UNIQ_KEY") or ""
        else:
            send = self._when(batch, text)
        try:
            placed = self._sends.place(send)
        except sdk.BadRequest as error:  # no attempt stores it: clients repeat other codes
            raise BadMessage(str(error)) from None
        self._sends.charge(_who(peer), batch)
        return _Put(placed, _Told(request, queue_id, transaction), given_up)

    def _sent_back(self, batch: PutBatch) -> PutBatch:
        """A message that its consumer sends back: accepted, as it was before.

        Its consumer adds to properties that may be as many as clients may send. Beyond the limits
        of clients, the stored message is looked up and compared. Raises BadMessage.
        """
        columns, most = batch.columns, PROPERTIES_BYTES_MAX - WAITING_BYTES
        try:
            columns.check(self._core.options.max_message_size, most)
        except BadMessage:
            properties = decode_properties(columns.properties.tobytes().decode(errors="replace"))
            if not self._is_stored(batch.topic, columns.bodies.tobytes(), properties):
                raise
            columns = Columns.of([columns.bodies.tobytes()], [fitting(properties, most)])
        return replace(batch, columns=columns, accepted=True)

    def _is_stored(self, topic: str, body: bytes, properties: Mapping[str, str]) -> bool:
        """Whether a message that is sent back has the body of its original, or of a retry."""
        group = self._group_of(topic)
        origin, key = properties.get("RETRY_TOPIC", ""), properties.get("UNIQ_KEY", "")
        lookups = self._core.store.lookups
        return any(
            record.body == body
            for name in (origin, group_retry_topic(group))
            if key and name and self._sight.may_read(name)
            for record in lookups.all_by_unique_key(name, key)
        )

    def _given_up(self, header: SendRequest) -> tuple[str, str] | None:
        """Topic and group of a message that its consumer sends back too often; None for others."""
        if not header.topic.startswith(RETRY_PREFIX):
            return None
        group = self._group_of(header.topic)
        row = self._core.metadata.tables.groups.get(group, {})
        most = header.max_reconsume_times
        if most < 0:
            most = int(row.get("retryMaxTimes", RETRY_TIMES))
        if header.reconsume_times < most:
            return None
        self._core.metadata.check_not_deleting(group)
        origin = property_of(properties_text(header.properties), b"RETRY_TOPIC")
        known = origin is not None and origin in self._core.metadata.topics
        if origin is None or not known or not self._sight.may_read(origin):
            origin = header.topic  # a client's word grows no table, and shows no topics of others
        return origin, group

    def _writable(self, header: SendRequest) -> TopicConfig:
        """The topic, made where clients may make it. Raises UnknownTopic, NoPermission."""
        topic, metadata = header.topic, self._core.metadata
        if topic not in metadata.topics and self._is_internal(topic):
            self._core.admission.check_knows()
            metadata.make_internal(topic)
        queues = max(1, header.default_topic_queue_nums)
        return self._core.admission.writable_topic(
            topic,
            name_of_caller(),
            queues=min(queues, self._broker.limits.default_topic_queues),
            make=header.default_topic == DEFAULT_TOPIC,
        )

    def _is_internal(self, topic: str) -> bool:
        """Whether a topic is one that the node makes for itself."""
        is_known = self._core.metadata.has_group(self._group_of(topic))
        return topic == self._reply_topic or is_known

    def _group_of(self, topic: str) -> str:
        """The group that a retry or dead-letter topic is of; empty for another topic."""
        return group_of(topic, self._core.metadata.tables.groups)

    def _queue(self, header: SendRequest, config: TopicConfig) -> int:
        if header.queue_id < 0:
            return next(self._turn) % config.queues
        if header.queue_id >= config.queues:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal: {config.name} has "
                f"{config.queues} queues",
            )
        return header.queue_id

    def _batch(
        self,
        peer: Peer,
        request: Command,
        header: SendRequest,
        queue_id: int,
        unsaid: tuple[bytes, ...],
    ) -> PutBatch:
        """The messages of a batch, without some properties."""
        if header.topic.startswith(RETRY_PREFIX):
            raise BadMessage("batches cannot be sent back")
        sent = read_batch(request.body, (*unsaid, b"MSG_REGION"))
        if sent.waiting and sent.columns.count > 1:
            raise BadMessage("a batch has delayed messages")
        flag = int(sent.flags[0])
        fields = _fields(header, sent.flags) if (sent.flags != flag).any() else None
        columns = sent.columns
        if columns.longest_properties <= _REGION_ROOM:
            columns = with_property(columns, _REGION)
        flags, born, attempts, _ = _same(header)
        batch = PutBatch(header.topic, queue_id, columns, born, peer.host, flag, flags, attempts)
        return replace(batch, fields=fields, placed=columns.count > 1)

    def _answerable(self, text: bytes) -> bytes:
        """Properties of a message; one that asks for a reply names the cluster to reply to."""
        if _ASKS not in text:
            return text
        return END.join((without(text, b"CLUSTER"), self._cluster))

    def charge(self, peer: Peer, topic: str, size: int, count: int) -> None:
        """Charge so many bytes and messages to quotas. Raises Throttled."""
        if self._core.throttle.on:
            self._sends.charge_bytes(_who(peer), topic, size, count)

    def _when(self, batch: PutBatch, text: bytes) -> Send:
        """A message, and the time of its delivery if its properties name one.

        Raises BadRequest, BadMessage.
        """
        level = _number(text, b"DELAY")
        if level > 0:
            return Send(batch, delay_level=level)
        now = self._core.times.wall_ms()
        due = _number(text, b"TIMER_DELIVER_MS")
        if not due and (delay := _number(text, b"TIMER_DELAY_MS")) > 0:
            due = now + delay
        if not due and (delay := _number(text, b"TIMER_DELAY_SEC")) > 0:
            due = now + 1000 * delay
        if due <= now:
            return Send(batch)
        text = without(text, b"TIMER_DELIVER_MS")  # it is noted again
        columns = Columns.of([batch.columns.bodies.tobytes()], [text])
        return Send(replace(batch, columns=columns), deliver_ms=due)

    # -- answers -------------------------------------------------------------------------------

    def _closed(self, request: Command, closed: PutResult) -> Command:
        self._sends.failed(closed.status.value)
        return self._refused(request, closed)

    def _refused(self, request: Command, result: PutResult) -> Command:
        remark = f"{result.status.value} {result.reason}".strip()
        return request.answer(put_code(result.status), remark)

    def _answer(self, told: _Told, result: PutResult) -> Command:
        if result.queue_offset < 0:
            return self._refused(told.request, result)
        host = self.host
        if isinstance(result, PassedOn):
            host = result.remoting_host or result.store_host or host
        if len(result.places):  # a client gives each message of its batch an id of its own
            ids = offset_message_ids(host, result.places)
        else:
            ids = offset_message_id(host, result.physical_offset)
        return self._told(told, result.queue_offset, ids, result.status, result.reason)

    def _told(
        self, told: _Told, offset: int, ids: str, status: PutMessageStatus, reason: str = ""
    ) -> Command:
        """The answer about what is stored. offset: of the first message in its queue."""
        fields = {
            "msgId": ids,
            "queueId": str(told.queue_id),
            "queueOffset": str(offset),
            **REGION,
        }
        if told.transaction_id:
            fields["transactionId"] = told.transaction_id
        return told.request.answer(put_code(status), reason, fields)


def _alone(peer: Peer, single: _Single) -> _Put:
    """A message that is stored by itself."""
    told, topic, (flag, sysflag, born, attempts, *_), text = single
    columns = Columns.of([told.request.body], [text])
    queue_id = told.queue_id
    batch = PutBatch(topic, queue_id, columns, born, peer.host, flag, sysflag, attempts)
    return _Put(Placed(topic, NORMAL, batch), told, None)


def _who(peer: Peer) -> Who:
    return Who.at(name_of_caller(), peer.host.address)


def _together(peer: Peer, singles: Sequence[_Single]) -> Singles:
    """Messages to one topic that are stored at once."""
    columns = Columns.of([one.told.request.body for one in singles], [one.text for one in singles])
    fields = np.array([*zip(*[one.numbers for one in singles], strict=True)], np.int64)
    return Singles(singles[0].topic, columns, fields, peer.host)


def _check_numbers(header: SendRequest) -> None:
    """Raise BadMessage for what could be stored, but not be delivered by every API."""
    if header.reconsume_times > RECONSUME_TIMES_MAX:
        raise BadMessage(f"the field reconsumeTimes exceeds {RECONSUME_TIMES_MAX}")
    if not 0 <= header.born_timestamp <= TIME_MS_MAX:
        raise BadMessage(f"the field bornTimestamp is outside 0..{TIME_MS_MAX}")


def _is_half(header: SendRequest, text: bytes) -> bool:
    """Whether a message waits for a decision; one that is sent back was committed."""
    is_prepared = property_of(text, b"TRAN_MSG") == "true"
    return is_prepared and not header.topic.startswith(_SENT_BACK)


def _unsaid(topic: str, is_given_up: bool) -> tuple[bytes, ...]:
    """Properties of a message that are not stored: what only the node says, and `WAIT`."""
    if is_given_up:
        return _UNSAID_OF_ALL
    return _UNSAID_SENT_BACK if topic.startswith(_SENT_BACK) else _UNSAID


def _dead_letter(header: SendRequest, origin: str, group: str) -> SendRequest:
    """A message for the dead letters of a group instead, at once, with where it comes from."""
    text = without(properties_text(header.properties), b"DELAY", *_ORIGIN)
    parts = [text] if text else []
    parts.append(b"DLQ_ORIGIN_TOPIC\x01" + origin.encode())
    if unique := property_of(text, b"UNIQ_KEY"):
        parts.append(b"DLQ_ORIGIN_MESSAGE_ID\x01" + unique.encode())
    properties = END.join(parts).decode()
    return replace(header, topic=dead_letter_topic(group), queue_id=0, properties=properties)


def _with_region(text: bytes) -> bytes:
    """Properties with a region: consumers of RocketMQ 5 trace no message without one."""
    if property_of(text, b"MSG_REGION") is not None or len(text) > _REGION_ROOM:
        return text
    return END.join((text, _REGION)) if text else _REGION


def _of_priority(text: bytes, queue_id: int, queues: int) -> int:
    """The queue of a message: its priority, where it has one and is of no other type."""
    if _PRIORITY not in text or _may_wait(text) or property_of(text, b"__SHARDINGKEY"):
        return queue_id
    found = property_of(text, _PRIORITY) or ""
    return min(int(found), queues - 1) if re.fullmatch("[0-9]{1,10}", found) else queue_id


def _may_wait(text: bytes) -> bool:
    """Whether a message may be delivered later than others: by its time, or by a decision."""
    for word in _WAITING_WORDS:
        if word in text:
            return any(mark in text for mark in _WAITING_MARKS)
    return False


def _fields(header: SendRequest, flags: I64) -> I64:
    """Header fields of a batch whose messages have different flags."""
    fields = np.empty((FIELDS, len(flags)), np.int64)
    fields[FIELD_FLAG] = flags
    fields[FIELD_FLAG + 1 :] = np.array(_same(header))[:, None]
    return fields


def _same(header: SendRequest) -> tuple[int, int, int, int]:
    flags = header.sys_flag & KEPT_FLAGS
    return flags, header.born_timestamp, max(0, header.reconsume_times), 0


def _numbers(header: SendRequest, born: int, queue_id: int) -> tuple[int, ...]:
    """Header fields of a single message, in the order of `SINGLES_FIELDS`."""
    flags, attempts = header.sys_flag & KEPT_FLAGS, max(0, header.reconsume_times)
    return header.flag, flags, born, attempts, 0, queue_id, 0


def _plain_header(template: Command) -> SendRequest | None:
    """The header of requests whose messages are stored as they come, but for their properties."""
    header = tried(read_send, template.code, template.fields)
    if isinstance(header, Exception) or header.batch or header.sys_flag & INNER_BATCH:
        return None
    is_back = header.topic.startswith(_SENT_BACK) or header.reconsume_times > RECONSUME_TIMES_MAX
    return None if is_back else header


def _number(text: bytes, name: bytes) -> int:
    """The number in a property, 0 for none. Raises BadRequest, BadMessage."""
    found = property_of(text, name)
    if found is None:
        return 0
    if not (found.removeprefix("-").isascii() and found.removeprefix("-").isdigit()):
        raise BadRequest(f"property {name.decode()} is not a number: {found[:40]!r}")
    if len(found) > 18:
        raise BadMessage(f"property {name.decode()} is too large: {found[:40]!r}")
    return int(found)
