"""duolog: the Python SDK of the duolog message store.

    async with duolog.Client("127.0.0.1:8081") as client:
        async with client.producer() as producer:
            await producer.send("greetings", b"hello", tags="en", key="order-1")
        async with client.consumer("readers", "greetings") as consumer:
            async for message in consumer:
                print(message.body)

`duolog.sync` has the same for programs without an event loop.
"""

from duolog import _grpcswitch as _grpcswitch  # before gRPC
from duolog._access import Access, Decision, User, UserDecision
from duolog._admin import Admin
from duolog._client import Client
from duolog._consumer import Consumer
from duolog._descriptions import (
    ClusterStatus,
    Durations,
    FoundMessage,
    FreezeStatus,
    GroupDescription,
    GroupHold,
    GroupQueue,
    GroupRoute,
    GroupSubscription,
    GroupTrack,
    LocalStore,
    LogEpoch,
    Mastership,
    NodeStatus,
    QueueMove,
    QueueMoves,
    QueueOffset,
    QueuePlace,
    QueueSpan,
    QueueStats,
    Quota,
    ReplicaRoute,
    ReplicationStatus,
    RocketmqSlaveStatus,
    Route,
    SlaveStatus,
    TopicDescription,
    TrackedMessage,
    TrackState,
    TrackStep,
    TrimmedQueue,
)
from duolog._errors import (
    BadRequest,
    BufferFull,
    Busy,
    CorruptBatch,
    DuologError,
    Fatal,
    MessageTooLarge,
    NoPermission,
    NoSuchMessage,
    NotMaster,
    OffsetMismatch,
    ResultUnknown,
    Retryable,
    SlaveNotAvailable,
    StaleMember,
    Throttled,
    Timeout,
    TopicExists,
    Unauthenticated,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
    WrongProcess,
)
from duolog._message import Batch, Message
from duolog._pages import Page
from duolog._posted import Posted
from duolog._producer import Producer
from duolog._receipts import BatchReceipt, Part, Receipt
from duolog._sink import Sink, SinkState
from duolog._start import Start
from duolog._tls import Tls
from duolog._transactions import Checker, Half, Transactions, UndecidedMessage
from duolog._version import __version__ as __version__
from duolog._waiting import DelayedMessage, DelayedPage, HalfMessage, HalvesPage
from duolog._worker import Handler

__all__ = [
    "Access",
    "Admin",
    "BadRequest",
    "Batch",
    "BatchReceipt",
    "BufferFull",
    "Busy",
    "Checker",
    "Client",
    "ClusterStatus",
    "Consumer",
    "CorruptBatch",
    "Decision",
    "DelayedMessage",
    "DelayedPage",
    "DuologError",
    "Durations",
    "Fatal",
    "FoundMessage",
    "FreezeStatus",
    "GroupDescription",
    "GroupHold",
    "GroupQueue",
    "GroupRoute",
    "GroupSubscription",
    "GroupTrack",
    "Half",
    "HalfMessage",
    "HalvesPage",
    "Handler",
    "LocalStore",
    "LogEpoch",
    "Mastership",
    "Message",
    "MessageTooLarge",
    "NoPermission",
    "NoSuchMessage",
    "NodeStatus",
    "NotMaster",
    "OffsetMismatch",
    "Page",
    "Part",
    "Posted",
    "Producer",
    "QueueMove",
    "QueueMoves",
    "QueueOffset",
    "QueuePlace",
    "QueueSpan",
    "QueueStats",
    "Quota",
    "Receipt",
    "ReplicaRoute",
    "ReplicationStatus",
    "ResultUnknown",
    "Retryable",
    "RocketmqSlaveStatus",
    "Route",
    "Sink",
    "SinkState",
    "SlaveNotAvailable",
    "SlaveStatus",
    "StaleMember",
    "Start",
    "Throttled",
    "Timeout",
    "Tls",
    "TopicDescription",
    "TopicExists",
    "TrackState",
    "TrackStep",
    "TrackedMessage",
    "Transactions",
    "TrimmedQueue",
    "Unauthenticated",
    "Unavailable",
    "UndecidedMessage",
    "UnknownGroup",
    "UnknownTopic",
    "User",
    "UserDecision",
    "WrongProcess",
]
