"""The broker that is followed: its calls, the tables beside its log, and its cluster.

Rules: one connection, made by the first call that needs it, and anew after it broke; a broker is
changed by `change` alone. Bodies are checked before anything is taken from them.

Its tables (topics, groups, offsets, delays) are written as the broker writes them, into the files
in which its own directory has them. So a node that starts on the directory finds what RocketMQ
would have left there, and stores it in its log. consumerFilter.json is not read: consumers name
their expressions again when they connect.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from duolog_server.compat.remoting.calling import ANYBODY, Access, Calling, CallRefused, connect
from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.nameserver import MASTER_ID
from duolog_server.store import jsontext
from duolog_server.store.disk import Disk
from duolog_server.store.metadata import NOT_THE_SHAPE, Metadata
from duolog_server.store.metadatafiles import DELAYS, EXPORTS, GROUPS, OFFSETS, TOPICS

BODY_SECONDS = 20.0  # for the tables of a large cluster
BEGINNING_SECONDS = 3.0  # in which a broker that has just begun cannot answer everything
AGAIN_SECONDS = 0.25
OFFSET_MAX = (1 << 63) - 1


class BadAnswer(ConnectionError):
    """A broker answered something else than a broker of RocketMQ does."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a broker stands: log offsets [first, end), and its version as it writes it.

    putting_ms: for how long a put has held the lock of its log now; others may wait for it.
    """

    first: int
    end: int
    version: str
    putting_ms: int = 0


class OldBroker:
    """One broker."""

    def __init__(self, address: str, access: Access = ANYBODY) -> None:
        """address: HOST:PORT."""
        self.address = address
        self._access = access
        self._calling: Calling | None = None
        self._connecting = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """Raises CallRefused, OSError, TimeoutError, as all calls do."""
        match _parsed(await self._figures(), self.address):
            case {"table": dict() as table}:
                first = _offset(table.get("commitLogMinOffset"), self.address)
                end = _offset(table.get("commitLogMaxOffset"), self.address)
                if first <= end:
                    version = str(table.get("brokerVersionDesc", ""))
                    putting = _offset(table.get("pageCacheLockTimeMills", 0), self.address)
                    return Runtime(first, end, version, putting)
        raise BadAnswer(f"{self.address} does not report where its log begins and ends")

    async def _figures(self) -> bytes:
        """The broker's runtime info; empty before its first measurement."""
        until = asyncio.get_running_loop().time() + BEGINNING_SECONDS
        while True:
            try:
                return await self.table(RequestCode.GET_BROKER_RUNTIME_INFO)
            except CallRefused as refused:
                now = asyncio.get_running_loop().time()
                if refused.code != ResponseCode.SYSTEM_ERROR or now >= until:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def settings(self) -> dict[str, str]:
        """The broker's configuration, by RocketMQ's names."""
        body = await self.table(RequestCode.GET_BROKER_CONFIG)
        rows = (line.partition("=") for line in body.decode(errors="replace").splitlines())
        return {key.strip(): value.strip() for key, separator, value in rows if separator}

    async def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message of a queue."""
        calling = await self._connected()
        fields = {"topic": topic, "queueId": str(queue_id)}
        answer = await calling.call(RequestCode.GET_MAX_OFFSET, fields)
        return _offset(answer.fields.get("offset"), self.address)

    async def change(self, settings: Mapping[str, str]) -> None:
        """Change settings while it runs; it writes them into its configuration file as well."""
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        calling = await self._connected()
        await calling.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    def close(self) -> None:
        """End the connection."""
        if self._calling is not None:
            self._calling.close()

    async def table(self, code: RequestCode) -> bytes:
        """A table as it writes it."""
        calling = await self._connected()
        return (await calling.call(code, seconds=BODY_SECONDS)).body

    async def _connected(self) -> Calling:
        async with self._connecting:
            if self._calling is None or not self._calling.is_open:
                self._calling = await connect(self.address, self._access)
            return self._calling


def _parsed(body: bytes, whose: str) -> fastjson.Value:
    try:
        return fastjson.loads(body)
    except BadRequest as error:
        raise BadAnswer(f"{whose}: {error}") from None


def _offset(value: object, address: str) -> int:
    """An offset of a log; a broker without a log says -1."""
    try:
        offset = max(0, int(str(value)))
    except ValueError:
        offset = OFFSET_MAX + 1
    if offset > OFFSET_MAX:
        raise BadAnswer(f"{address} says {str(value)[:80]!r} where an offset is expected")
    return offset


_CODES = {
    TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAYS: RequestCode.GET_ALL_DELAY_OFFSET,
}
_ADOPT = {export.path: export.adopt for export in EXPORTS}
_EMPTY = b'{"offsetTable":{}}'


async def read_tables(broker: OldBroker) -> dict[str, bytes]:
    """The texts of all tables, by the path of their file.

    Raises CallRefused, BadAnswer, OSError, TimeoutError.
    """
    texts = {path: await broker.table(code) for path, code in _CODES.items()}
    # A broker on which no message was ever delayed has no such file.
    texts[DELAYS] = texts[DELAYS] or _EMPTY
    parsed(texts)
    return {path: text.strip() for path, text in texts.items()}


def parsed(texts: Mapping[str, bytes]) -> Metadata:
    """The tables in these texts. Raises BadAnswer."""
    tables = Metadata()
    for path, text in texts.items():
        try:
            _ADOPT[path](tables, jsontext.loads(text.decode()))
        except NOT_THE_SHAPE as error:
            raise BadAnswer(f"the broker's table for {path} has another form: {error!r}") from None
    return tables


def save_tables(disk: Disk, texts: Mapping[str, bytes], saved: Mapping[str, bytes]) -> None:
    """Replace the files whose texts changed since they were saved. Raises OSError."""
    for path, text in texts.items():
        if saved.get(path) != text:
            jsontext.replace(disk, path, text)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One master. problem: why nothing more is known of it. attributes: of topics, by name.

    static_topics: whose queues are mapped. popping: topics and groups that read them by POP.
    """

    name: str
    address: str
    problem: str = ""
    runtime: Runtime = Runtime(0, 0, "")
    settings: dict[str, str] = field(default_factory=dict)
    tables: Metadata = field(default_factory=Metadata)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    static_topics: tuple[str, ...] = ()
    popping: tuple[tuple[str, str], ...] = ()


async def brokers_of(name_server: str, access: Access = ANYBODY) -> dict[str, str]:
    """The addresses of all masters, by name. Raises CallRefused, OSError, TimeoutError."""
    calling = await connect(name_server, access)
    try:
        answer = await calling.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    finally:
        calling.close()
    match _parsed(answer.body, name_server):
        case {"brokerAddrTable": dict() as table}:
            masters = {str(name): _master(row) for name, row in table.items()}
            return {name: address for name, address in masters.items() if address}
    raise BadAnswer(f"{name_server} does not list its brokers")


def _master(row: fastjson.Value) -> str:
    match row:
        case {"brokerAddrs": dict() as addresses}:
            return str(addresses.get(MASTER_ID) or addresses.get(str(MASTER_ID)) or "")
    return ""


async def facts_of(name: str, address: str, access: Access = ANYBODY) -> BrokerFacts:
    """Facts about one master."""
    broker = OldBroker(address, access)
    try:
        texts = await read_tables(broker)
        return BrokerFacts(
            name,
            address,
            "",
            await broker.runtime(),
            await broker.settings(),
            parsed(texts),
            _attributes(texts[TOPICS]),
            _static_topics(texts[TOPICS]),
            await _popping(broker),
        )
    except (OSError, TimeoutError, CallRefused) as error:
        return BrokerFacts(name, address, str(error) or type(error).__name__)
    finally:
        broker.close()


def _static_topics(topics: bytes) -> tuple[str, ...]:
    """Topics whose queues RocketMQ 5 maps to those of several brokers."""
    match _parsed(topics, "the broker's table of topics"):
        case {"topicQueueMappingDetailMap": dict() as table}:
            return tuple(map(str, table))
    return ()


async def _popping(broker: OldBroker) -> tuple[tuple[str, str], ...]:
    """Topics and groups that read them by POP. Raises as `OldBroker.table`."""
    try:
        body = await broker.table(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    except CallRefused as refused:
        if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # RocketMQ 4
            return ()
        raise
    found: list[tuple[str, str]] = []
    match _parsed(body, "the broker's table of request modes"):
        case {"messageRequestModeMap": dict() as topics}:
            for topic, groups in topics.items():
                rows = groups.items() if isinstance(groups, dict) else ()
                for group, row in rows:
                    match row:
                        case {"mode": "POP"}:
                            found.append((str(topic), str(group)))
    return tuple(sorted(found))


def _attributes(topics: bytes) -> dict[str, dict[str, str]]:
    """RocketMQ 5's attributes of topics, by topic."""
    found: dict[str, dict[str, str]] = {}
    match _parsed(topics, "the broker's table of topics"):
        case {"topicConfigTable": dict() as table}:
            for name, row in table.items():
                match row:
                    case {"attributes": dict() as attributes}:
                        rows = {str(key): str(value) for key, value in attributes.items()}
                        found[str(name)] = rows
    return found
