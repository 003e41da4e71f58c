"""Consumer groups: created, altered, deleted and described."""

from collections.abc import Mapping
from typing import TypeGuard

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.bodies import group_name, read_group, read_groups
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import NUMBER_MAX, BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import Key, Value
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import DeleteGroupRequest, GroupRequest
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.store.metadata import new_group

# Settings of a group that the native API does not name; they are kept as they are set.
_TRUTHS = (
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeFromMinEnable",
    "notifyConsumerIdsChangedEnable",
)
_NUMBERS = ("brokerId", "retryQueueNums", "whichBrokerWhenConsumeSlowly")


class Groups:
    """Serves requests about groups."""

    def __init__(self, broker: Broker, verbs: Verbs) -> None:
        self._broker = broker
        self._verbs = verbs

    async def put(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. Raises as Admin/PutGroup, BadRequest."""
        await self._put(peer, *_settings(read_group(request.body)))
        return request.answer(0)

    async def put_all(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: as `put`, up to the first that is refused."""
        for wanted, others in [_settings(row) for row in read_groups(request.body)]:
            await self._put(peer, wanted, others)
        return request.answer(0)

    async def _put(
        self, peer: Peer, wanted: wire.PutGroupRequest, others: dict[str, bool | int]
    ) -> None:
        await self._verbs.put_group(peer, wanted)
        row = self._broker.metadata.tables.groups.get(wanted.group, new_group(wanted.group))
        if any(row.get(name) != value for name, value in others.items()):
            await self._broker.metadata.put_group({**row, **others})
            self._verbs.note(peer, "Admin/PutGroup", f"Group:{wanted.group}", others)

    async def delete(self, peer: Peer, request: Command) -> Command:
        """DELETE_SUBSCRIPTIONGROUP. Raises as Admin/DeleteGroup; an unknown one is no error."""
        group = read_header(DeleteGroupRequest, request.fields).group_name
        try:
            await self._verbs.delete_group(peer, group)
        except sdk.UnknownGroup:
            pass
        return request.answer(0)

    async def config(self, request: Command) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG. Raises NotMaster, Refused."""
        group = read_header(GroupRequest, request.fields).group
        await self._broker.log.caught_up()
        row = self._broker.admission.group_tables().groups.get(group)
        if row is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return request.answer(0, body=dumps(row))


def _settings(config: Mapping[Key, Value]) -> tuple[wire.PutGroupRequest, dict[str, bool | int]]:
    """What a SubscriptionGroupConfig sets: by the native API, and others. Raises BadRequest."""
    return _wanted(config), _others(config)


def _wanted(config: Mapping[Key, Value]) -> wire.PutGroupRequest:
    """What a SubscriptionGroupConfig sets. Raises BadRequest."""
    request = wire.PutGroupRequest(group=group_name(config))
    if (orderly := _truth(config, "consumeMessageOrderly")) is not None:
        request.orderly = orderly
    if (times := _number(config, "retryMaxTimes")) is not None:
        request.retry_times = times
    request.retry_delays_ms.extend(_delays(config.get("groupRetryPolicy")))
    if config.get("attributes"):
        raise BadRequest("attributes of a group are not set over this protocol: see `duolog group`")
    return request


def _delays(policy: Value) -> list[int]:
    """The delays of a GroupRetryPolicy, ms; none where it names none. Raises BadRequest."""
    if not isinstance(policy, dict):
        return []
    custom = policy.get("customizedRetryPolicy")
    if policy.get("type") == "EXPONENTIAL":
        raise BadRequest("retry policies of type EXPONENTIAL are not supported: list the delays")
    if custom is None:
        return []
    delays = custom.get("next") if isinstance(custom, dict) else None
    found = [one for one in delays if _is_delay(one)] if isinstance(delays, list) else []
    if not isinstance(delays, list) or len(found) < len(delays):
        raise BadRequest("customizedRetryPolicy has no list `next` of delays in ms")
    return found


def _is_delay(value: Value) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _others(config: Mapping[Key, Value]) -> dict[str, bool | int]:
    """The other settings that it has. Raises BadRequest."""
    found: dict[str, bool | int] = {}
    for name in _TRUTHS:
        if (truth := _truth(config, name)) is not None:
            found[name] = truth
    for name in _NUMBERS:
        if (number := _number(config, name)) is not None:
            found[name] = number
    return found


def _truth(config: Mapping[Key, Value], name: str) -> bool | None:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} of a group is neither true nor false")
    return value


def _number(config: Mapping[Key, Value], name: str) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise BadRequest(f"{name} of a group is no number of 0 to {NUMBER_MAX}")
    return value
