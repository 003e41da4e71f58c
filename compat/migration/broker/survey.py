"""A cluster of RocketMQ, as its name server and its brokers describe it."""

from dataclasses import dataclass, field

from duolog_server.compat.migration.broker.calls import BadAnswer, OldBroker, Runtime
from duolog_server.compat.migration.broker.tables import parsed, read_tables
from duolog_server.compat.remoting.calling import ANYBODY, Access, CallRefused, connect
from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.errors import BadRequest
from duolog_server.store.metadata import Metadata
from duolog_server.store.metadatafiles import TOPICS

MASTER = 0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One master. problem: why nothing more is known of it. attributes: of topics, by name."""

    name: str
    address: str
    problem: str = ""
    runtime: Runtime = Runtime(0, 0, "")
    settings: dict[str, str] = field(default_factory=dict)
    tables: Metadata = field(default_factory=Metadata)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)


async def brokers_of(name_server: str, access: Access = ANYBODY) -> dict[str, str]:
    """The addresses of all masters, by name. Raises CallRefused, OSError, TimeoutError."""
    calling = await connect(name_server, access)
    try:
        answer = await calling.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    finally:
        calling.close()
    try:
        match fastjson.loads(answer.body):
            case {"brokerAddrTable": dict() as table}:
                return {str(name): address for name, address in _masters(table) if address}
    except BadRequest as error:
        raise BadAnswer(f"{name_server}: {error}") from None
    raise BadAnswer(f"{name_server} does not list its brokers")


def _masters(table: dict[fastjson.Key, fastjson.Value]) -> list[tuple[fastjson.Key, str]]:
    found = []
    for name, row in table.items():
        match row:
            case {"brokerAddrs": dict() as addresses}:
                found.append((name, str(addresses.get(MASTER) or addresses.get(str(MASTER)) or "")))
    return found


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
        )
    except (OSError, TimeoutError, CallRefused) as error:
        return BrokerFacts(name, address, str(error) or type(error).__name__)
    finally:
        broker.close()


def _attributes(topics: bytes) -> dict[str, dict[str, str]]:
    """RocketMQ 5's attributes of topics, by topic."""
    found: dict[str, dict[str, str]] = {}
    try:
        read = fastjson.loads(topics)
    except BadRequest as error:
        raise BadAnswer(f"the broker's table of topics: {error}") from None
    match read:
        case {"topicConfigTable": dict() as table}:
            for name, row in table.items():
                match row:
                    case {"attributes": dict() as attributes}:
                        rows = {str(key): str(value) for key, value in attributes.items()}
                        found[str(name)] = rows
    return found
