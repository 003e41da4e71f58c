"""The parts of a node that its services stand on."""

from dataclasses import dataclass

from node.core.admission import Admission
from node.core.metadatalog import MetadataLog
from node.core.ports import KnownQueues, Log, Positions, Reads
from node.core.throttle import Throttle
from node.core.traffic import Traffic
from node.engine.arrivals import ArrivalBoard
from node.engine.storetimes import StoreTimes
from node.traces.recorder import Recorder
from store.options import StoreOptions


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
