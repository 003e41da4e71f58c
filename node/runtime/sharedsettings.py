"""The settings that all nodes of a replica group should have alike, for operators to compare.

What a node promises, takes, keeps and asks for would otherwise change with the master.
"""

from collections.abc import Mapping

from duolog_server.node.runtime.config import Config

_STORE = (
    "flush_disk_type",
    "transient_store_pool_enable",
    "max_message_size",
    "message_delay_level",
    "file_reserved_time",
)
_HA = ("in_sync_replicas", "min_in_sync_replicas", "ack", "slave_timeout")
_HA_MORE = ("ha_slave_fallbehind_max", "ha_max_time_slave_not_catchup")


def shared_settings(config: Config) -> Mapping[str, str]:
    """Settings by option; of a secret file, whether it is set."""
    found = {f"store.{name}": getattr(config.store, name) for name in _STORE}
    found |= {f"ha.{name}": getattr(config.ha, name) for name in (*_HA, *_HA_MORE)}
    found |= {f"limits.{name}": value for name, value in config.limits.model_dump().items()}
    found |= {f"transactions.{name}": v for name, v in config.transactions.model_dump().items()}
    found["registry.lease_seconds"] = config.registry.lease_seconds
    found["access.key_file"] = "set" if config.access.key_file is not None else "not set"
    found["access.node_proof"] = config.access.node_proof
    return {name: str(getattr(value, "value", value)) for name, value in found.items()}
