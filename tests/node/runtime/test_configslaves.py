"""The section of RocketMQ's slaves: who may connect, and which keys need each other."""

from typing import Any

import pytest
from pydantic import ValidationError

from duolog_server.node.runtime.cautions import cautions
from duolog_server.node.runtime.config import Config, ConfigError, load

ALLOW = ("10.0.0.7", "10.0.1.0/24", "fd00::/8")


def made(listen: str = "127.0.0.1:10912", **more: Any) -> Config:
    config = Config.model_validate(
        {"rocketmq_slaves": {"listen": listen, "allow": ALLOW, **more.pop("ours", {})}, **more}
    )
    config.check()
    return config


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.0.0.7", True),
        ("10.0.0.8", False),
        ("10.0.1.200", True),
        ("10.0.2.1", False),
        ("fd00::1", True),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.7", True),
        ("::ffff:10.0.0.8", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_addresses_and_networks_that_are_allowed(host: str, allowed: bool) -> None:
    assert made().rocketmq_slaves.allows(host) is allowed


@pytest.mark.parametrize("wrong", ["10.0.0", "10.0.0.7/24", "slaves.example.org", "10.0.0.0/40"])
def test_what_is_no_address_is_an_error(wrong: str) -> None:
    with pytest.raises(ValidationError, match="is neither an address nor a network"):
        made(ours={"allow": [wrong]})


def test_the_environment_has_them_in_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOG_ROCKETMQ_SLAVES__LISTEN", "127.0.0.1:10912")
    monkeypatch.setenv("DUOLOG_ROCKETMQ_SLAVES__ALLOW", "10.0.0.7; 10.0.1.0/24")
    config, _ = load()
    assert config.rocketmq_slaves.allow == ("10.0.0.7", "10.0.1.0/24")


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"listen": "127.0.0.1:10912"}, "listen needs rocketmq_slaves.allow"),
        ({"allow": ["10.0.0.7"]}, "need rocketmq_slaves.listen"),
        ({"advertise": "a:1"}, "need rocketmq_slaves.listen"),
    ],
)
def test_keys_that_need_others(section: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config.model_validate({"rocketmq_slaves": section}).check()


def test_the_port_two_below_is_taken_and_told_where_others_reach_it() -> None:
    remoting = {"listen": "127.0.0.1:9876"}
    assert made(remoting=remoting).remoting_fast_address == "127.0.0.1:9874"
    assert made().remoting_fast_address == ""
    assert Config.model_validate({"remoting": remoting}).remoting_fast_address == ""
    with pytest.raises(ConfigError, match=r"two below remoting.listen = 127.0.0.1:9874 and"):
        made(remoting=remoting, metrics={"listen": "127.0.0.1:9874"})
    with pytest.raises(ConfigError, match="choose a port from 3 on"):
        made(remoting={"listen": "127.0.0.1:2"})
    assert cautions(made()) == []
    (one,) = cautions(made("0.0.0.0:10912"))
    assert "anyone with an allowed address" in one


@pytest.mark.parametrize(
    ("remoting", "address"),
    [
        ({"listen": "127.0.0.1:9876"}, "127.0.0.1:9874"),
        ({"listen": "[::]:9876"}, "[::]:9874"),
        ({"listen": "127.0.0.1:9876", "vip_channel": False}, ""),
        ({"listen": "127.0.0.1:2"}, ""),
        ({"listen": "127.0.0.1:0"}, ""),
        ({}, ""),
    ],
)
def test_where_clients_with_the_vip_channel_are_served(
    remoting: dict[str, Any], address: str
) -> None:
    config = Config.model_validate({"remoting": remoting})
    config.check()
    assert config.remoting_vip_address == address
