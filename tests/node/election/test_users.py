"""Users of a group whose master changes."""

import asyncio
from pathlib import Path

import duolog
import pytest

from tests.keyfiles import access_files
from tests.node.election.test_failover import Voters, name_of
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"
RIGHTS = (
    '{"policies": [{"policyType": "Custom", "entries": '
    '[{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]}]}'
)


@pytest.fixture
async def voters(start_node: StartNode, tmp_path: Path) -> Voters:
    access = access_files(tmp_path, PASSWORD)
    made = Voters(start_node, tmp_path)
    for name in "abc":
        await made.start(name, access=access)
    await made.whole()
    return made


def client_of(voters: Voters, user: str, *names: str) -> duolog.Client:
    chosen = [voters.nodes[name] for name in names or sorted(voters.nodes)]
    endpoints = [f"127.0.0.1:{node.port}" for node in chosen]
    return duolog.Client(endpoints, timeout=15, user=user, password=PASSWORD)


async def test_every_node_decides_alike_before_and_after_a_failover(voters: Voters) -> None:
    async with client_of(voters, "root") as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD)
        await root.access.set_rights("alice", RIGHTS)
        await root.admin.create_topic("T", 1)

        async def decided(allowed: bool) -> None:
            """Each node by itself says whether alice may send."""
            for name in voters.nodes:
                async with client_of(voters, "root", name) as one:
                    async with asyncio.timeout(WAIT_SECONDS):
                        while True:
                            found = await one.access.test("Pub", "Topic:T", user="alice")
                            if found.allowed == allowed:
                                break
                            await asyncio.sleep(0.01)

        await decided(True)
        async with client_of(voters, "alice") as alice, alice.producer() as producer:
            await producer.send("T", b"before")
            old = voters.the_leader()
            await voters.stop(name_of(old))
            await until(lambda: voters.leader not in (None, old))
            await producer.send("T", b"after")
            await decided(True)
            await root.access.set_rights("alice", "")
            await decided(False)
            with pytest.raises(duolog.NoPermission, match="alice"):
                await producer.send("T", b"no more")


async def test_a_slave_that_may_not_know_a_user_sends_it_to_the_master(voters: Voters) -> None:
    slave = next(name for name, node in voters.nodes.items() if node is not voters.the_leader())
    async with client_of(voters, "nobody", slave) as nobody:
        with pytest.raises(duolog.Unauthenticated, match="nobody"):
            await nobody.access.who_am_i()
