"""Settings that work and are not safe."""

import json
from pathlib import Path
from typing import Any

import duolog
import pytest
from typer.testing import CliRunner

from duolog_server.demo.certificates import Authority
from duolog_server.node.runtime.cautions import cautions
from duolog_server.node.runtime.config import Config
from duolog_server.ops.cli.config import app
from duolog_server.ops.cli.node import problems_of
from tests.keyfiles import key_file
from tests.nodefixtures import StartNode


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Of a node with users and certificates: safe."""
    key = key_file(tmp_path)
    authority = Authority(tmp_path)
    node = authority.issue("node")
    made = {"users": key, "ca": authority.cert, "cert": node.cert, "key": node.key}
    return {name: str(path) for name, path in made.items()}


def told(**sections: Any) -> list[str]:
    return cautions(Config.model_validate(sections))


def test_what_others_reach_or_read_is_told(files: dict[str, str]) -> None:
    assert told() == []
    for host in ("127.0.0.1", "127.8.8.8", "[::1]", "localhost"):
        listen = f"{host}:8081"
        users = {"key_file": files["users"]}
        assert told(node={"listen": listen}, access=users, ha={"listen": f"{host}:1"}) == []
    (one,) = told(ha={"listen": "0.0.0.0:10912"})
    assert "replication has no TLS" in one
    secured = {"tls_ca": files["ca"], "tls_cert": files["cert"], "tls_key": files["key"]}
    assert told(ha={"listen": "0.0.0.0:10912", **secured}) == []
    (one,) = told(audit={"topic": True})
    assert "anyone who reaches this node can read the log" in one
    assert told(audit={"topic": True}, access={"key_file": files["users"]}) == []
    assert told(audit={"file": "audit.log"}) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "[::]", "n1.example"])
def test_users_on_a_plain_port_that_others_reach(files: dict[str, str], host: str) -> None:
    users = {"key_file": files["users"]}
    node = {"listen": f"{host}:8081"}
    (one,) = told(node=node, access=users)
    assert one.startswith(f"node.listen = {host}:8081: users call a port without TLS")
    assert told(node=node) == []  # nobody has a password
    frames = {"frames_listen": f"{host}:8082"}
    (one,) = told(node=frames, access=users)
    assert one.startswith("node.frames_listen")
    (one,) = told(metrics={"listen": f"{host}:1"}, access=users)
    assert one.startswith("metrics.listen")
    tls = {"cert": files["cert"], "key": files["key"]}
    assert told(node=node, access=users, tls={**tls, "only": True}) == []
    metrics = {"listen": f"{host}:1", "tls": True}
    assert told(metrics=metrics, access=users, tls={**tls, "only": True}) == []
    assert len(told(node=node, access=users, tls={**tls, "listen": f"{host}:1"})) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "[::]", "n1.example"])
def test_a_remoting_port_that_others_reach(files: dict[str, str], host: str) -> None:
    remoting = {"listen": f"{host}:9876"}
    (one,) = told(remoting=remoting)
    assert one.startswith(f"remoting.listen = {host}:9876: without users, anyone who reaches")
    users = {"key_file": files["users"]}
    (one,) = told(remoting=remoting, access=users)
    assert "without TLS" in one
    (one,) = told(remoting=remoting, rocketmq={"access_key": "a", "secret_key": "b"})
    assert "without TLS" in one
    tls = {"cert": files["cert"], "key": files["key"]}
    assert len(told(remoting=remoting, access=users, tls=tls)) == 1, "plain connections, too"
    assert told(remoting=remoting, access=users, tls={**tls, "only": True}) == []
    for here in ("127.0.0.1", "[::1]", "localhost"):
        assert told(remoting={"listen": f"{here}:9876"}) == []


@pytest.mark.parametrize(("mode", "safe"), [(0o600, True), (0o640, True), (0o644, False)])
def test_keys_that_are_open_to_others(files: dict[str, str], mode: int, safe: bool) -> None:
    Path(files["key"]).chmod(mode)
    tls = {"cert": files["cert"], "key": files["key"], "only": True}
    found = told(tls=tls)
    assert len(found) == (not safe)
    assert all(f"chmod 600 {files['key']}" in text for text in found)
    Path(files["key"]).unlink()
    assert told(tls=tls) == []


async def test_a_node_tells_how_many_there_are(start_node: StartNode) -> None:
    for listen, expected in (("127.0.0.1:0", 0), ("0.0.0.0:0", 1)):
        node = await start_node(ha={"listen": listen})
        async with duolog.Client(f"127.0.0.1:{node.port}") as client:
            status = await client.admin.node_status()
        assert status.parts.get("unsafe_settings", 0) == expected
        assert problems_of(status) == []
        await node.stop()


def check(file: Path, *words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["check", "--config", str(file), *words])
    return found.exit_code, found.output


def test_the_command_warns_of_what_works_and_fails_of_what_does_not(
    files: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text("")
    assert check(file) == (0, "no problems found\n")
    old = Authority(tmp_path / "old").issue("old", days=0)
    secured = f'[tls]\nonly = true\ncert = "{old.cert}"\nkey = "{old.key}"\n'
    file.write_text(f'{secured}[ha]\nlisten = "0.0.0.0:1"\n')
    status, text = check(file)
    assert status == 0
    assert text.count("warning: ") == 2
    assert "expired" in text
    assert len(json.loads(check(file, "--json")[1])) == 2
    file.write_text(f'{secured}[access]\nkey_file = "{files["users"]}"\n')
    assert check(file)[0] == 0
    Path(files["users"]).chmod(0o644)
    status, text = check(file)
    assert (status, "users.key" in text.replace("\n", "")) == (2, True)
    file.write_text("[tls]\nonly = true\n")
    assert check(file)[0] == 2
