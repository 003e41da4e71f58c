"""Sources of the config: named files, the node's environment variables, and other variables."""

from pathlib import Path

import pytest

from duolog_server.ha.options import AckMode, HaOptions
from duolog_server.node.runtime.cautions import unreached
from duolog_server.node.runtime.config import AccessSection, ConfigError, load, rows
from duolog_server.store.options import StoreOptions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no variable of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DUOLOG_CONFIG", raising=False)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "duolog.toml").write_bytes(b'\xef\xbb\xbf[node]\nname = "a"\n')
    assert load()[0].node.name == "a"


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"listen": "0.0.0.0:8081"}, "127.0.0.1"),
        ({"listen": "[::]:8081"}, "::1"),
        ({"listen": "0.0.0.0:8081", "advertise": "a:8081"}, ""),
        ({"listen": "10.0.0.7:8081"}, ""),
    ],
)
def test_who_listens_everywhere_and_tells_nobody_where_is_warned(
    node: dict[str, object], told: str
) -> None:
    found = unreached(load(None, {"node": node})[0])
    assert [f"get {told} as its address" in text for text in found] == [True] * bool(told)


@pytest.mark.parametrize("name", ["missing.toml", ".", "/nonexistent/duolog.toml"])
def test_a_file_that_the_environment_names_and_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DUOLOG_CONFIG", name)
    with pytest.raises(ConfigError, match=f"DUOLOG_CONFIG.*{name}"):
        load()


def test_a_file_that_the_environment_names_is_read_unless_a_flag_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.toml").write_text('[node]\nname = "a"\n')
    (tmp_path / "b.toml").write_text('[node]\nname = "b"\n')
    (tmp_path / "duolog.toml").write_text('[node]\nname = "default"\n')
    assert load()[0].node.name == "default"
    monkeypatch.setenv("DUOLOG_CONFIG", "a.toml")
    config, origins = load()
    assert (config.node.name, origins["node", "name"]) == ("a", "a.toml")
    assert load(Path("b.toml"))[0].node.name == "b"
    monkeypatch.setenv("DUOLOG_CONFIG", "missing.toml")
    assert load(Path("b.toml"))[0].node.name == "b"  # the variable counts for nothing then
    monkeypatch.setenv("DUOLOG_CONFIG", "")
    assert load()[0].node.name == "default"


@pytest.mark.parametrize(
    "name",
    [
        "DUOLOG_VENV",
        "DUOLOG_SERVICE_HOST",
        "DUOLOG_PORT",
        "DUOLOG_PORT_8081_TCP",
        "DUOLOG_PORT_8081_TCP_ADDR",
        "DUOLOG_SERVICE_PORT_GRPC",
        "DUOLOG_A__B_SERVICE_HOST",
        "DUOLOG_STORE",
        "DUOLOG_",
        "DUOLOG",
        "DUOLOGS_NODE__NAME",
        "MY_DUOLOG_NODE__NOPE",
    ],
)
def test_environment_variables_of_other_programs_are_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8081")
    assert load()[1] == {}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DUOLOG_STORE__FLUSH_DISK_TYP", "DUOLOG_STORE__FLUSH_DISK_TYPE"),
        ("DUOLOG_STOER__FLUSH_DISK_TYPE", "DUOLOG_STORE__FLUSH_DISK_TYPE"),
        ("DUOLOG_NODE__NAEM", "DUOLOG_NODE__NAME"),
        ("DUOLOG_NODE__BROKER_ROLE", "DUOLOG_STORE__BROKER_ROLE"),
    ],
)
def test_a_wrong_key_of_ours_is_an_error_with_the_nearest_right_one(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ConfigError, match=f"{name}: unknown key; did you mean {meant}"):
        load()


@pytest.mark.parametrize("name", ["DUOLOG_LIMITS__", "DUOLOG_STORE__BOGUS"])
def test_no_key_is_suggested_if_none_is_similar(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ConfigError, match=f"{name}: unknown key$"):
        load()


def test_keys_are_taken_in_any_case_and_wrong_ones_name_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DUOLOG_node__Name", "x")
    assert load()[0].node.name == "x"
    (tmp_path / "duolog.toml").write_text('[node]\nlisten_on = "127.0.0.1:1"\n')
    with pytest.raises(ConfigError, match=r"node.listen_on: .* did you mean node.listen\?"):
        load()
    (tmp_path / "duolog.toml").unlink()
    with pytest.raises(ConfigError, match=r"did you mean store.flush_disk_type\?"):
        load(flags={"store": {"flush_type": "SYNC_FLUSH"}})


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        ("ha", "slave_timeout", 0, "ha: slave_timeout must be at least 1 ms"),
        ("store", "max_message_size", 0, "store: max_message_size must be from 1 byte to 1 GiB"),
        (
            "store",
            "file_reserved_time",
            -4,
            "store: file_reserved_time is -4; it must not be negative",
        ),
    ],
)
def test_conflicting_keys_are_an_error_of_their_section(
    section: str, key: str, value: int, text: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{text}$"):
        load(flags={section: {key: value}})
    with pytest.raises(
        ConfigError, match=r"^node.listen: 'x' is not of the form HOST:PORT \(from flag\)$"
    ):
        load(flags={section: {key: value}, "node": {"listen": "x"}})


def test_sections_hold_the_options_that_engine_and_replication_take() -> None:
    config, origins = load(flags={"ha": {"ack": "durable", "listen": "h:1"}, "store": {}})
    assert (config.ha.ack, config.ha.listen) == (AckMode.DURABLE, "h:1")
    assert isinstance(config.ha, HaOptions)
    assert config.store == StoreOptions()
    assert origins["ha", "ack"] == "flag"
    section = AccessSection(date_zones="Asia/Shanghai, Europe/Berlin,")
    assert [zone.key for zone in section.zones()] == ["Asia/Shanghai", "Europe/Berlin"]
    for name in ("Nowhere", "../../etc/passwd", "/etc/passwd", "+08:00"):
        with pytest.raises(ValueError, match="is not a time zone that this machine knows"):
            AccessSection(date_zones=name)


def test_what_is_shown_of_the_configuration_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "duolog.toml").write_text(
        '[rocketmq]\naccess_key = "name"\nsecret_key = "hush"\n'
        '[traces]\nendpoint = "https://user:hush@collector:4318/v1/traces"\n'
    )
    shown = {(section, key): value for section, key, value, _ in rows(*load())}
    assert "hush" not in str(shown)
    assert shown["rocketmq", "access_key"] == "name"
    assert shown["rocketmq", "secret_key"] == "(set, not shown)"
    assert shown["traces", "endpoint"] == "https://collector:4318/v1/traces"
    (tmp_path / "duolog.toml").unlink()
    assert {(section, key): value for section, key, value, _ in rows(*load())}[
        "rocketmq", "secret_key"
    ] == ""
