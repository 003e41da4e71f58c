"""What each shard of a machine has of its own."""

from pathlib import Path

import pytest

from duolog_server.node.runtime.config import ConfigError, Tree, load
from duolog_server.node.runtime.shardsettings import ShardSettings, shards_of


def shards(count: int, **sections: dict[str, object]) -> list[ShardSettings]:
    given: Tree = {
        "node": {"name": "m1", "group": "g", "listen": "10.0.0.1:8081", "data": Path("/d")},
        "store": {"broker_role": "AUTO"},
        "ha": {"listen": "10.0.0.1:8082"},
        "registry": {"endpoints": "10.0.0.9:2379"},
    }
    flags = {key: {**given.get(key, {}), **sections.get(key, {})} for key in {*given, *sections}}
    return shards_of(load(None, flags)[0], None, flags, count)


def test_a_shard_is_a_node_of_a_group_of_its_own_in_a_directory_of_its_own() -> None:
    first, second = shards(2)
    for shard, found in (("0", first), ("1", second)):
        node = found.config.node
        assert (node.name, node.group) == (f"m1-{shard}", f"g-{shard}")
        assert node.data == Path(f"/d/shard-{shard}")
        assert node.name_in_log == node.name
        assert found.metrics_port == 0


def test_every_port_is_ten_above_that_of_the_shard_before() -> None:
    _, second = shards(
        2,
        node={"advertise": "n.example:9001", "frames_listen": "10.0.0.1:8083"},
        remoting={"listen": "10.0.0.1:10911", "advertise": "n.example:911"},
        rocketmq_slaves={"listen": "10.0.0.1:10914", "allow": "10.0.0.2", "advertise": "n.e:914"},
        ha={"frames_listen": "10.0.0.1:8084", "advertise": "n.example:9002"},
    )
    config = second.config
    assert config.node.listen == "10.0.0.1:8091"
    assert config.node.advertise == "n.example:9011"
    assert config.node.frames_listen == "10.0.0.1:8093"
    assert config.ha.listen == "10.0.0.1:8092"
    assert config.ha.frames_listen == "10.0.0.1:8094"
    assert config.ha.advertise == "n.example:9012"
    assert config.remoting.listen == "10.0.0.1:10921"
    assert config.remoting.advertise == "n.example:921"
    assert config.rocketmq_slaves.listen == "10.0.0.1:10924"
    assert config.rocketmq_slaves.advertise == "n.e:924"


def test_ports_that_are_free_ones_or_not_set_stay() -> None:
    _, second = shards(2, node={"listen": "10.0.0.1:0"}, ha={"listen": "10.0.0.1:0"})
    assert second.config.node.listen == second.config.ha.listen == "10.0.0.1:0"
    assert second.config.node.frames_listen == "auto"
    assert second.config.remoting.listen == second.config.node.advertise == ""


def test_metrics_of_shards_are_on_the_loopback_and_the_console_is_of_the_first() -> None:
    first, second = shards(
        2, metrics={"listen": "0.0.0.0:9400"}, console={"listen": "0.0.0.0:9500", "url": "http://c"}
    )
    assert (first.metrics_port, second.metrics_port) == (9401, 9411)
    assert first.config.metrics.listen == "127.0.0.1:9401"
    assert (first.config.console.listen, second.config.console.listen) == ("0.0.0.0:9500", "")


def test_each_shard_has_a_file_of_the_audit_log(tmp_path: Path) -> None:
    _, second = shards(2, audit={"file": tmp_path / "audit.jsonl"})
    assert second.config.audit.file == tmp_path / "audit-1.jsonl"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"store": {"broker_role": "ASYNC_MASTER"}}, "needs nodes that elect their masters"),
        ({"ha": {"listen": "10.0.0.1:8101"}}, "shard 2: node.listen = 10.0.0.1:8101"),
        ({"remoting": {"listen": "10.0.0.1:8093"}}, "VIP channel"),
        ({"metrics": {"listen": "0.0.0.0:8091"}}, "all shards: metrics.listen"),
        ({"metrics": {"listen": "0.0.0.0:0"}}, "must be named"),
        ({"node": {"listen": "10.0.0.1:65530"}}, "no port 10 above it"),
    ],
)
def test_settings_with_which_not_all_shards_could_run_are_refused(
    sections: dict[str, dict[str, object]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        shards(3, **sections)
