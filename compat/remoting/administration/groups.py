"""Consumer groups: created, altered, deleted and described."""

import contextlib
from collections.abc import Mapping
from typing import TypeGuard

from duolog import _errors as sdk

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.bodies import (
    group_name,
    read_group,
    read_groups,
    read_request_mode,
)
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import NUMBER_MAX, BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import Key, Value
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import DeleteGroupRequest, GroupRequest
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.service.groups import Groups as Changes
from duolog_server.node.service.groups import GroupSettings
from duolog_server.store.metadata import Json

# Settings of a group that this node does not go by; they are kept as they are set.
_TRUTHS = (
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeFromMinEnable",
    "notifyConsumerIdsChangedEnable",
)
_NUMBERS = ("brokerId", "retryQueueNums", "whichBrokerWhenConsumeSlowly")


class Groups:
    """Serves requests about groups."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    async def put(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. Raises as Groups.put, BadRequest."""
        row = read_group(request.body)
        await self._changes.put(peer.host.address, group_name(row), _settings(row))
        return request.answer(0)

    async def put_all(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: as `put`, up to the first that is refused."""
        rows = read_groups(request.body)
        for name, settings in [(group_name(row), _settings(row)) for row in rows]:
            await self._changes.put(peer.host.address, name, settings)
        return request.answer(0)

    async def set_mode(self, peer: Peer, request: Command) -> Command:
        """SET_MESSAGE_REQUEST_MODE: how the group reads a topic. Raises as `put`, Refused.

        popShareQueueNum is ignored: all members of a group share all queues.
        """
        wanted = read_request_mode(request.body)
        self._row(wanted.group)
        settings = GroupSettings(request_mode=(wanted.topic, wanted.mode))
        await self._changes.put(peer.host.address, wanted.group, settings)
        return request.answer(0)

    async def delete(self, peer: Peer, request: Command) -> Command:
        """DELETE_SUBSCRIPTIONGROUP. Raises as Groups.delete; an unknown one is no error."""
        group = read_header(DeleteGroupRequest, request.fields).group_name
        with contextlib.suppress(sdk.UnknownGroup):
            await self._changes.delete(peer.host.address, group)
        return request.answer(0)

    async def config(self, request: Command) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG. Raises NotMaster, Refused."""
        group = read_header(GroupRequest, request.fields).group
        await self._broker.log.caught_up()
        return request.answer(0, body=dumps(self._row(group)))

    def _row(self, group: str) -> Json:
        row: Json | None = self._broker.admission.group_tables().groups.get(group)
        if row is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return row


def _settings(config: Mapping[Key, Value]) -> GroupSettings:
    """What a SubscriptionGroupConfig sets. Raises BadRequest."""
    if config.get("attributes"):
        raise BadRequest("attributes of a group are not set over this protocol: see `duolog group`")
    return GroupSettings(
        _truth(config, "consumeMessageOrderly"),
        _number(config, "retryMaxTimes"),
        tuple(_delays(config.get("groupRetryPolicy"))),
        others=_others(config),
    )


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
