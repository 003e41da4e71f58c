"""Requests of RocketMQ's tools that are refused, each with its reason."""

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command

_SETTER = (
    "settings are not changed over the network: edit the node's file and restart it; "
    "`duolog node check` checks the file"
)
_KEY_VALUES = (
    "this node keeps no key-value configuration: it is name server and broker in one, and routes "
    "follow from its topics"
)
_PERMISSION = (
    "a route has the queues of one replica group, so that nothing would be left to send to: "
    "move the master with `duolog cluster failover`, or take a topic's perm 2 with updateTopicPerm"
)
_ACL = "RocketMQ 4's ACL files are not used here: see `duolog user` and `duolog acl`"
_ROLES = "there is no controller, the nodes elect their master: see `duolog cluster`"
_CONTAINER = "a node is one broker: start and stop its process"
_USERS = "users and rights are not changed over this protocol: see `duolog user` and `duolog acl`"
_ROCKSDB = "nothing of this node is in RocksDB"
_STATIC = "static topics are not supported: a topic's queues belong to one replica group"
_POP = "consumers read by POP_MESSAGE, and wait in it: see docs/remoting.md"
_COLD = "reads of cold data are not limited here: see `duolog quota`"
# By code: RocketMQ's name, and why.
_REASONS: dict[int, tuple[str, str]] = {
    25: ("UPDATE_BROKER_CONFIG", _SETTER),
    50: ("UPDATE_AND_CREATE_ACL_CONFIG", _ACL),
    51: ("DELETE_ACL_CONFIG", _ACL),
    52: ("GET_BROKER_CLUSTER_ACL_INFO", _ACL),
    53: ("UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", _ACL),
    54: ("GET_BROKER_CLUSTER_ACL_CONFIG", _ACL),
    100: ("PUT_KV_CONFIG", _KEY_VALUES),
    205: ("WIPE_WRITE_PERM_OF_BROKER", _PERMISSION),
    318: ("UPDATE_NAMESRV_CONFIG", _SETTER),
    327: ("ADD_WRITE_PERM_OF_BROKER", _PERMISSION),
    329: (
        "DELETE_EXPIRED_COMMITLOG",
        "expired segments are deleted at store.delete_when, or earlier where the disk is full",
    ),
    354: ("CHECK_ROCKSDB_CQ_WRITE_PROGRESS", _ROCKSDB),
    355: ("EXPORT_ROCKSDB_CONFIG_TO_JSON", _ROCKSDB),
    513: ("UPDATE_AND_CREATE_STATIC_TOPIC", _STATIC),
    902: ("ADD_BROKER", _CONTAINER),
    903: ("REMOVE_BROKER", _CONTAINER),
    908: ("RESET_MASTER_FLUSH_OFFSET", _ROLES),
    1002: ("CONTROLLER_ELECT_MASTER", _ROLES),
    1005: ("CONTROLLER_GET_METADATA_INFO", _ROLES),
    1006: ("CONTROLLER_GET_SYNC_STATE_DATA", _ROLES),
    1009: ("UPDATE_CONTROLLER_CONFIG", _SETTER),
    1010: ("GET_CONTROLLER_CONFIG", _ROLES),
    1011: ("CLEAN_BROKER_DATA", _ROLES),
    2001: ("UPDATE_COLD_DATA_FLOW_CTR_CONFIG", _COLD),
    2002: ("REMOVE_COLD_DATA_FLOW_CTR_CONFIG", _COLD),
    2003: ("GET_COLD_DATA_FLOW_CTR_INFO", _COLD),
    2004: ("SET_COMMITLOG_READ_MODE", _COLD),
    200052: ("PEEK_MESSAGE", _POP),
    200054: ("NOTIFICATION", _POP),
    200055: ("POLLING_INFO", _POP),
    200056: ("POP_ROLLBACK", _POP),
    **{
        3001 + number: (f"AUTH_{name}", _USERS)
        for number, name in enumerate(
            (
                *("CREATE_USER", "UPDATE_USER", "DELETE_USER", "GET_USER", "LIST_USER"),
                *("CREATE_ACL", "UPDATE_ACL", "DELETE_ACL", "GET_ACL", "LIST_ACL"),
            )
        )
    },
}


def unsupported(request: Command) -> Command:
    """The answer to a request that nobody serves here."""
    name, reason = _REASONS.get(request.code, ("", ""))
    remark = f" request type {request.code} not supported"
    if reason:
        remark = f"{remark}: {name}: {reason}"
    return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
