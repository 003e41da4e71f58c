"""The parts of a node that its services stand on."""

from dataclasses import dataclass

from duolog_server.node.core.admission import Admission
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.core.ports import KnownQueues, Log, Positions, Reads
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.core.traffic import Traffic
from duolog_server.node.engine.arrivals import ArrivalBoard
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.traces.recorder import Recorder
from duolog_server.store.options import StoreOptions


@dataclass(frozen=True, slots=True)
class Core:
    """The lower layers of one node. store, positions, queues: views of the same store."""

    log: Log
    store: Reads
    positions: Positions
    queues: KnownQueues
    options: StoreOptions
    times: StoreTimes
    board: ArrivalBoard
    metadata: MetadataLog
    admission: Admission
    traffic: Traffic
    throttle: Throttle
    traces: Recorder | None = None  # takes notes of deliveries, where spans are exported
