"""A TaskIQ broker over a topic: its tasks are messages, its workers the members of a group.

    broker = DuologBroker("127.0.0.1:8081")

    @broker.task
    async def add(one: int, two: int) -> int: ...

Rules:

- A message is consumed once TaskIQ has acknowledged its task and all before it in its queue: no
  committed offset passes a task that runs. What is not acknowledged when a worker ends runs again.
- A worker takes a message only when TaskIQ asks for one: `--max-async-tasks` says how many tasks it
  has at a time.
- A task whose handling fails in TaskIQ's hooks, or that the worker does not know, is sent back: the
  group gets it again later, and after the last attempt it is a dead letter. What is no task at all
  is a dead letter at once.

Needs the extra `duolog[taskiq]`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from duolog._background import Background, close_all
from duolog._backoff import BackOff
from duolog._checks import checked_number, checked_text, checked_whole
from duolog._client import Client, parse_endpoints
from duolog._columns import property_text
from duolog._consumer import Consumer
from duolog._errors import BadRequest, NoPermission, Retryable, TopicExists
from duolog._message import Message
from duolog._producer import Producer
from duolog._tls import Tls
from duolog._worker import GivenBack, Work, Worker

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
    from taskiq.labels import prepare_label
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing}; duolog.taskiq needs TaskIQ: pip install 'duolog[taskiq]'", name=missing.name
    ) from missing

__all__ = ["DuologBroker"]

log = logging.getLogger("duolog.taskiq")

QUEUES_MAX = 1024
COMMIT_SECONDS = 1.0  # what was acknowledged since runs again after a crash
CLOSE_SECONDS = 1.0  # for acknowledgements, and what is sent back, once the reading has ended
LABEL_CHARS_MAX = 1000  # of a label that becomes a property
LABELS_BYTES_MAX = 16 << 10  # of all that become properties, of which a message has at most 31 KiB


class NotHandled(Exception):
    """A task that was not handled: it is sent back."""


class DuologBroker(AsyncBroker):
    """A broker whose tasks are messages of a topic.

    A label `delay` (seconds) or `deliver_at` (ms since 1970) delays a task in the store, for at
    most 3 days; of both, the later time counts. Labels are properties of the message as well, where
    they can be; the task's name is its tag, its id a key.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        queues: int = 16,
        session: float = 10.0,
        user: str = "",
        password: str = "",
        tls: Tls | bool | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Not connected yet: see `startup`. Raises BadRequest.

        Args:
            endpoints: as for `duolog.Client`; so are user, password, tls and timeout.
            topic: made by `startup` where it does not exist.
            group: of the workers; workers of different groups all get every task.
            queues: of a topic that is made; at most so many worker processes get tasks.
            session: seconds of silence after which other workers get a worker's tasks. A task that
                takes longer may run twice where workers come and go.
        """
        super().__init__()
        parse_endpoints(endpoints)
        self.topic = checked_text("topic", topic)
        self.group = checked_text("group", group)
        self._queues = checked_whole("queues", queues, 1, QUEUES_MAX)
        self._session = checked_number("session", session, 0)
        self._endpoints = endpoints
        self._options: dict[str, Any] = {
            "user": user,
            "password": password,
            "tls": tls,
            "timeout": timeout,
        }
        self._open: _Open | None = None
        self._starting: set[Client] = set()  # of `startup` that runs

    async def startup(self) -> None:
        """Connect, and make the topic where it does not exist; a broker connects only once.

        Raises what `Client` and its `create_topic` raise, also where `shutdown` ends it.
        """
        if self._open is None:
            # Not before: the program may fork between.
            client = Client(self._endpoints, **self._options)
            self._starting.add(client)
            try:
                await self._make_topic(client)
                if client not in self._starting:
                    raise BadRequest("the broker was shut down while it started")
            except BaseException:
                await client.close()
                raise
            finally:
                self._starting.discard(client)
            if self._open is None:
                self._open = _Open(client)
            else:  # another call of it was faster
                await client.close()
        await super().startup()

    async def _make_topic(self, client: Client) -> None:
        try:
            await client.admin.create_topic(self.topic, self._queues)
        except TopicExists:
            pass  # with other settings, which stay
        except NoPermission as error:
            log.info("topic %s must have been made by another user: %s", self.topic, error)

    async def shutdown(self) -> None:
        """Stop listening, commit what was acknowledged, disconnect. May be called again."""
        try:
            await super().shutdown()
        finally:
            opened, self._open = self._open, None
            starting, self._starting = self._starting, set()
            closing = [opened.close] if opened is not None else []
            await close_all([client.close for client in starting], closing)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Raises what `Producer.send` raises, BadRequest for a wrong delay."""
        opened, labels = self._opened(), message.labels
        delay, deliver_at = _delay_in(labels)
        await opened.producer.send(
            self.topic,
            message.message,
            tags=message.task_name if _fits("TASK", message.task_name) else None,
            keys=message.task_id if _is_key(message.task_id) else (),
            properties=_properties_of(labels),
            delay=delay,
            deliver_at=deliver_at,
        )

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Tasks for this worker, as a member of the group.

        Where no node answers for long, it joins again and again. What an earlier call that has
        ended was given and did not finish comes again. Raises what ends the reading for good.
        """
        opened, pauses = self._opened(), BackOff()
        await opened.end_left()
        while True:
            consumer = opened.client.consumer(
                self.group, self.topic, session=self._session, commit_interval=COMMIT_SECONDS
            )
            listening = _Listening(self, consumer)
            opened.listening.add(listening)
            try:
                while (task := await listening.next()) is not None:
                    pauses = BackOff()
                    yield task
                return
            except Retryable as error:
                log.warning("tasks cannot be read now, and will be again: %s", error)
            except Exception:
                await opened.end(listening)  # a member that reads nothing keeps its queues
                raise
            finally:
                listening.left = True  # but its tasks may be running
            await opened.end(listening)
            await asyncio.sleep(pauses.next())

    def _opened(self) -> "_Open":
        if self._open is None:
            raise BadRequest("the broker was not started, or is shut down: await broker.startup()")
        return self._open


class _Open:
    """Client, producer and listeners of a broker from `startup` to `shutdown`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.producer: Producer = client.producer()
        self.listening: set[_Listening] = set()

    async def end_left(self) -> None:
        """Leave the group with the members from which nobody takes tasks any more. Bounded."""
        for one in [one for one in self.listening if one.left]:
            await self.end(one)

    async def end(self, listening: "_Listening") -> None:
        """Leave the group with one of the members. Bounded."""
        await listening.close()
        self.listening.discard(listening)

    async def close(self) -> None:
        """End everything. Bounded."""
        await close_all([one.close for one in self.listening], [self.client.close])


class _Acknowledgement:
    """The callback of a task, which TaskIQ calls once it is done with it."""

    def __init__(self) -> None:
        self.called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        if not self.called.done():
            self.called.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Fail the wait for the call."""
        if not self.called.done():
            self.called.set_exception(error)

    def expect(self) -> None:
        """Expect the call by the end of the running task, unless that ends without an error: then
        the program calls it later (`AcknowledgeType.MANUAL`)."""
        handling = asyncio.current_task()
        if handling is not None:
            handling.add_done_callback(self._handled)

    def _handled(self, handling: "asyncio.Task[Any]") -> None:
        if self.called.done():
            return  # asyncio reports its error, if it has one
        if handling.cancelled():
            self.refuse(NotHandled("its handling was cancelled"))
        elif (error := handling.exception()) is not None:
            refused = NotHandled(f"its handling failed: {type(error).__name__}: {error}")
            refused.__cause__ = error
            self.refuse(refused)


class _Task(AckableMessage):
    """A message as TaskIQ's receiver gets it.

    The receiver handles each in an asyncio task of its own, which looks into it first. Where its
    hooks raise, that task ends, and nobody calls `ack`.
    """

    def __getattribute__(self, name: str) -> Any:
        if name == "data":
            super().__getattribute__("ack").expect()
        return super().__getattribute__(name)


class _Listening:
    """A worker's member of the group: reads on demand, and holds what TaskIQ has not finished."""

    def __init__(self, broker: DuologBroker, consumer: Consumer) -> None:
        self._broker = broker
        self._consumer = consumer
        self._background = Background(lambda error: None)  # `next` raises it
        self._running: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        # The one that TaskIQ asked for; None: there are no more.
        self._asked: asyncio.Queue[AckableMessage | None] = asyncio.Queue()
        self._unfinished: set[_Acknowledgement] = set()
        self.left = False  # nobody calls `next` any more

    async def next(self) -> AckableMessage | None:
        """One more message for TaskIQ; None: there are no more. Raises what ended the reading."""
        if self._running is None:
            self._running = self._background.start(self._run())
            self._running.add_done_callback(lambda _: self._asked.put_nowait(None))
        else:
            self._want()
        found = await self._asked.get()
        if found is None:
            await self._running
        return found

    async def _run(self) -> None:
        await self._consumer.start()
        work = Work(self._hand_over, 1, False, CLOSE_SECONDS, on_demand=True)
        self._worker = self._consumer.make_worker(work)
        self._want()
        await self._consumer.run_worker(self._worker)

    def _want(self) -> None:
        if self._worker is not None:
            self._worker.want()

    async def close(self) -> None:
        """Give back what is not acknowledged, commit the rest, leave the group. Bounded."""
        if self._worker is not None:
            self._worker.stop()
        left = [one for one in self._unfinished if not one.called.done()]
        if left:
            log.warning("%d tasks were not finished: they run again", len(left))
        for one in left:
            one.refuse(GivenBack())
        if self._worker is None:
            await self._background.stop()  # it was joining
        await self._background.finish()
        await self._consumer.close()

    async def _hand_over(self, message: Message) -> None:
        """The handler of a message: ends once TaskIQ has acknowledged it."""
        try:
            is_task = await self._is_task(message)
        except BaseException:
            self._want()  # in its place
            raise
        if not is_task:
            self._want()
            return
        acknowledgement = _Acknowledgement()
        self._unfinished.add(acknowledgement)
        self._asked.put_nowait(_Task(data=message.body, ack=acknowledgement))
        try:
            await acknowledgement.called
        finally:
            self._unfinished.discard(acknowledgement)

    async def _is_task(self, message: Message) -> bool:
        """Whether the message is a task; any other becomes a dead letter. Raises NotHandled where
        this worker does not know the task."""
        try:
            task = self._broker.formatter.loads(message.body)
            task.parse_labels()  # TaskIQ drops a task whose labels it cannot read
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            topic = await self._consumer.send_back(message, delay_level=-1)
            log.error("%r is no task (%s): it is in %s", message, reason, topic)
            return False
        if self._broker.find_task(task.task_name) is None:
            raise NotHandled(f'this worker has no task "{task.task_name}"')
        return True


def _delay_in(labels: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """`delay` and `deliver_at` of a send; of both labels, the later time. Raises BadRequest."""
    delay, deliver_at = (_number_in(labels, name) for name in ("delay", "deliver_at"))
    if deliver_at is None:
        return delay, None
    if delay is None:
        return None, int(deliver_at)
    return None, max(int(deliver_at), int((time.time() + delay) * 1000))


def _number_in(labels: Mapping[str, Any], name: str) -> float | None:
    value = labels.get(name)
    if value is None:
        return None
    try:
        return checked_number(f"label {name}", float(value), 0, 1e15)
    except (TypeError, ValueError):
        raise BadRequest(f"label {name} is {value!r}; it must be a number") from None


def _properties_of(labels: Mapping[str, Any]) -> dict[str, str]:
    """The labels that can be properties, as far as there is room: the body has all of them."""
    found: dict[str, str] = {}
    left = LABELS_BYTES_MAX
    for name, value in labels.items():
        text = prepare_label(value)[0]
        if _fits(name, text) and (size := len(f"{name}{text}".encode())) <= left:
            left -= size
            found[name] = text
    return found


def _fits(name: str, text: str) -> bool:
    """Whether a label can be a property."""
    try:
        property_text(None, (), {name: text})
    except BadRequest:
        return False
    return len(text) <= LABEL_CHARS_MAX


def _is_key(task_id: str) -> bool:
    try:
        property_text(None, task_id, None)
    except BadRequest:
        return False
    return True
