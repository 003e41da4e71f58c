"""Groups whose nodes take TLS only: clients follow masters over gRPC and over frames."""

from pathlib import Path

import duolog
import pytest
from duolog import _connection
from duolog._frameschannel import FramesChannel

from duolog_server.demo.certificates import Authority
from tests.keyfiles import access_files
from tests.node.election.test_failover import Voters, name_of
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
async def voters(start_node: StartNode, tmp_path: Path, authority: Authority) -> Voters:
    """Nodes with users, that require certificates."""
    access = access_files(tmp_path, PASSWORD)
    node = authority.issue("node")
    tls = {
        "cert": node.cert,
        "key": node.key,
        "only": True,
        "client_certs": "required",
        "client_ca": authority.cert,
    }
    made = Voters(start_node, tmp_path)
    for name in "abc":
        await made.start(name, access=access, tls=tls)
    await made.whole()
    return made


@pytest.mark.parametrize("transport", ["frames", "grpc"])
async def test_a_client_with_a_certificate_follows_a_failover_over_tls(
    voters: Voters,
    authority: Authority,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
    quick_groups: None,
) -> None:
    monkeypatch.setenv("DUOLOG_TRANSPORT", transport)
    monkeypatch.setattr(_connection, "FRAMES_AGAIN_SECONDS", (0.05, 0.1))
    root = authority.issue("root", ())
    tls = duolog.Tls(authority.cert, root.cert, root.key)
    first = f"127.0.0.1:{voters.the_leader().port}"  # the others are learnt from it

    async with duolog.Client(first, tls=tls, timeout=15) as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.admin.create_topic("T", 1)

        def over_it() -> bool:
            channel = client._router.connection("broker-a").channel
            return isinstance(channel, FramesChannel) == (transport == "frames")

        sent = 0
        async with client.producer() as producer:
            for k in range(20):
                await producer.send("T", b"%d" % k)
                sent += 1
            await until(over_it)
            old = voters.the_leader()
            await voters.stop(name_of(old))
            for k in range(20, 40):
                await producer.send("T", b"%d" % k)
                sent += 1
            await until(lambda: voters.leader not in (None, old))
            assert client._router.connection("broker-a").endpoint != first
            await until(over_it)
        async with client.consumer("G", "T") as consumer:
            found = [await consumer.get(10) for _ in range(sent)]
        assert [message.body for message in found if message] == [b"%d" % k for k in range(sent)]
