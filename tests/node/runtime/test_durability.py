"""Durability in one word: what it sets, what contradicts it, and where it is shown."""

from pathlib import Path

import pytest
from duolog import NodeStatus
from duolog._descriptions import ReplicationStatus

from duolog_server.ha.guarantee import DURABILITIES
from duolog_server.node.runtime.config import ConfigError, load, rows
from duolog_server.node.runtime.durability import durability_of
from duolog_server.node.runtime.sharedsettings import shared_settings
from duolog_server.ops.inspection.durability import durability

AUTO: dict[str, object] = {"broker_role": "AUTO"}


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(word: str = "", **sections: dict[str, object]) -> dict[str, tuple[object, str]]:
    """Values and origins, by key."""
    tree: dict[str, dict[str, object]] = {"ha": {"listen": "127.0.0.1:10912"}, **sections}
    if word:
        tree["node"] = {"durability": word}
    config, origins = load(None, tree)
    found = {f"{s}.{key}": (value, where) for s, key, value, where in rows(config, origins)}
    word_now = durability_of(config.store, config.ha)
    assert found["node.durability"][0] == word_now, "it is what the settings say"
    status = NodeStatus(
        "a",
        config.store.broker_role.value.replace("AUTO", "SYNC_MASTER"),
        settings=shared_settings(config),
        replication=ReplicationStatus(role="LEADING"),
    )
    if config.store.broker_role.value != "SLAVE":
        assert durability(status) == word_now, "operators see the same"
    return found


@pytest.mark.parametrize(
    ("word", "role", "flush"),
    [
        ("process", "ASYNC_MASTER", "ASYNC_FLUSH"),
        ("power", "ASYNC_MASTER", "SYNC_FLUSH"),
        ("replicas", "SYNC_MASTER", "ASYNC_FLUSH"),
        ("replicas+power", "SYNC_MASTER", "SYNC_FLUSH"),
    ],
)
def test_a_word_sets_role_and_flush_mode(word: str, role: str, flush: str) -> None:
    found = loaded(word)
    assert found["store.broker_role"] == (role, "node.durability")
    assert found["store.flush_disk_type"] == (flush, "node.durability")
    alike: dict[str, object] = {"broker_role": role, "flush_disk_type": flush}
    assert loaded("", store=alike)["node.durability"][0] == word
    assert loaded(word, store=alike)["store.broker_role"] == (role, "flag")


@pytest.mark.parametrize("word", DURABILITIES)
def test_an_auto_node_keeps_its_role(word: str) -> None:
    found = loaded(word, store=AUTO, registry={"endpoints": "127.0.0.1:2379"})
    assert found["store.broker_role"][0] == "AUTO"
    assert found["ha.in_sync_replicas"][0] == (2 if word.startswith("replicas") else 1)


def test_the_default_is_that_of_rocketmq() -> None:
    found = loaded()
    origin = "store.broker_role, store.flush_disk_type"
    assert found["node.durability"] == ("process", origin)
    assert loaded("", store={"transient_store_pool_enable": True})["node.durability"][0] == "none"
    slave = loaded("", store={"broker_role": "SLAVE"}, ha={"master": "127.0.0.1:1"})
    assert slave["node.durability"][0] == "its master's"


@pytest.mark.parametrize(
    ("word", "section", "key", "value"),
    [
        ("process", "store", "flush_disk_type", "SYNC_FLUSH"),
        ("power", "store", "flush_disk_type", "ASYNC_FLUSH"),
        ("replicas", "store", "flush_disk_type", "SYNC_FLUSH"),
        ("replicas+power", "store", "flush_disk_type", "ASYNC_FLUSH"),
        ("process", "store", "broker_role", "SYNC_MASTER"),
        ("power", "store", "broker_role", "SYNC_MASTER"),
        ("replicas", "store", "broker_role", "ASYNC_MASTER"),
        ("replicas+power", "store", "broker_role", "ASYNC_MASTER"),
        ("replicas", "ha", "in_sync_replicas", 1),
        ("replicas+power", "ha", "ack", "received"),
        ("process", "store", "transient_store_pool_enable", True),
    ],
)
def test_a_setting_that_promises_otherwise_is_an_error(
    word: str, section: str, key: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=rf"contradicts {section}\.{key} = {value}.*from flag"):
        loaded(word, **{section: {key: value}})


def test_an_auto_node_of_several_replicas_is_not_called_process() -> None:
    with pytest.raises(ConfigError, match=r"contradicts ha\.in_sync_replicas = 2, it needs 1"):
        loaded("process", store=AUTO, ha={"in_sync_replicas": 2})


def test_an_unknown_word_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be process, power, replicas, replicas"):
        loaded("disk")


def test_what_a_group_promises_counts_for_its_master() -> None:
    config, _ = load(None, {"store": {"broker_role": "ASYNC_MASTER"}})
    promised = {"in-sync-replicas": "2", "flush-disk-type": "SYNC_FLUSH", "ack": "durable"}

    def shown(role: str, **how: object) -> str:
        part = ReplicationStatus(role="LEADING", guarantee=how.pop("guarantee", {}))  # type: ignore[arg-type]
        settings = how.pop("settings", shared_settings(config))
        return durability(NodeStatus("a", role, settings=settings, replication=part))  # type: ignore[arg-type]

    assert shown("SYNC_MASTER") == "replicas"
    assert shown("SYNC_MASTER", guarantee=promised) == "replicas+power"
    assert shown("SYNC_MASTER", guarantee={**promised, "ack": "received"}) == "replicas"
    assert shown("SYNC_MASTER", guarantee={"quorum": "3"}) == "", "of a newer version"
    assert shown("SLAVE") == ""
    assert shown("ASYNC_MASTER", settings={}) == "", "of an older version"
