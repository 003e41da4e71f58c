"""`node.durability`: role, flush mode and number of replicas in one word.

| durability | an acknowledged message survives | store.broker_role | store.flush_disk_type |
|---|---|---|---|
| `process` | a kill of the process | ASYNC_MASTER | ASYNC_FLUSH |
| `power` | also a power cut | ASYNC_MASTER | SYNC_FLUSH |
| `replicas` | also the loss of a node, not a power cut of all | SYNC_MASTER or AUTO | ASYNC_FLUSH |
| `replicas+power` | also a power cut of all nodes | SYNC_MASTER or AUTO | SYNC_FLUSH |

Rules: the word sets what is not set; a setting that promises otherwise is an error, and is never
overridden. A SLAVE and an AUTO node keep their role: the word says what they wait for as masters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from duolog_server.ha.guarantee import ASYNC, DURABILITIES, RECEIVED, SYNC
from duolog_server.ha.options import HaOptions, own_guarantee
from duolog_server.store.options import StoreOptions
from duolog_server.store.status import BrokerRole

LOST_WITH_THE_PROCESS = "none"  # acknowledged from a buffer of the process
OF_ITS_MASTER = "its master's"
Settings = Mapping[str, Mapping[str, object]]
ASYNC_MASTER, SYNC_MASTER, AUTO = (
    role.value for role in (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.AUTO)
)


def settings_for(word: str, given: Settings) -> dict[tuple[str, str], object]:
    """The settings of a durability that are not given. Raises ValueError where one contradicts it.

    given: what the file, the environment and the flags say, by section and key.
    """
    if word not in DURABILITIES:
        raise ValueError(f"must be {', '.join(DURABILITIES)}, not {word!r}")
    store, ha = given.get("store", {}), given.get("ha", {})
    power, replicas = word.endswith("power"), word.startswith("replicas")
    wanted: dict[tuple[str, str], object] = {
        ("store", "flush_disk_type"): SYNC if power else ASYNC,
        ("store", "broker_role"): SYNC_MASTER if replicas else ASYNC_MASTER,
    }
    if not replicas and store.get("broker_role") == AUTO:
        wanted["ha", "in_sync_replicas"] = 1
    for (section, key), value in _contradictions(word, store, ha):
        needs = wanted.get((section, key))
        raise ValueError(
            f"{word!r} contradicts {section}.{key} = {value}"
            + (f", it needs {needs}" if needs is not None else "")
            + ": remove one of them"
        )
    return {at: value for at, value in wanted.items() if at[1] not in given.get(at[0], {})}


def _contradictions(
    word: str, store: Mapping[str, object], ha: Mapping[str, object]
) -> Iterator[tuple[tuple[str, str], object]]:
    """Given settings that promise something else."""
    power, replicas = word.endswith("power"), word.startswith("replicas")
    flush, role = store.get("flush_disk_type"), store.get("broker_role")
    count = str(ha.get("in_sync_replicas", ""))
    if flush in (SYNC, ASYNC) and (flush == SYNC) != power:
        yield ("store", "flush_disk_type"), flush
    if role == (ASYNC_MASTER if replicas else SYNC_MASTER):
        yield ("store", "broker_role"), role
    if count.isdecimal() and (int(count) < 2 if replicas else int(count) > 1 and role == AUTO):
        yield ("ha", "in_sync_replicas"), count
    if power and replicas and ha.get("ack") == RECEIVED:
        yield ("ha", "ack"), RECEIVED
    pool = store.get("transient_store_pool_enable", False)
    if word == "process" and str(pool).lower() in ("true", "1", "yes", "on"):
        yield ("store", "transient_store_pool_enable"), pool


def durability_of(store: StoreOptions, ha: HaOptions) -> str:
    """What messages that a node with these settings acknowledges survive."""
    if store.broker_role is BrokerRole.SLAVE:
        return OF_ITS_MASTER
    own = own_guarantee(ha, store)
    if store.broker_role is BrokerRole.ASYNC_MASTER:
        own = replace(own, in_sync_replicas=1)
    lost = store.use_transient_store_pool and own.durability == "process"
    return LOST_WITH_THE_PROCESS if lost else own.durability
