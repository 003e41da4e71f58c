"""Every field of every request with values that nobody should send, signed by users."""

from pathlib import Path

import pytest
import structlog.testing
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.fields import fields_of
from duolog_server.compat.remoting.codec.signatures import ACCESS_KEY, SIGNATURE
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import Remoting, connected
from tests.compat.remoting.guarding.asked import TABLE, signs
from tests.compat.remoting.requests import REQUESTS
from tests.compat.remoting.test_hostile import BODIES, WRONG, answers, right, spelled
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(access=with_users(tmp_path), remoting={"listen": free_endpoint()})
    await make_topics(made, "T")
    await Users(made).new("root", super=True)
    await Users(made).new("all", "All *")
    return made


async def hostile(remoting: Remoting, code: int) -> None:
    kind = REQUESTS[RequestCode(code)]
    for field in fields_of(kind):
        fields = [{**right(RequestCode(code)), field.name: wrong} for wrong in WRONG]
        await answers(
            [remoting.begin(code, spelled(RequestCode(code), one), b"body") for one in fields]
        )
    fields_ = spelled(RequestCode(code), right(RequestCode(code)))
    await answers([remoting.begin(code, fields_, body) for body in BODIES])


@pytest.mark.parametrize("code", TABLE)
async def test_every_field_may_be_anything(
    node: Node, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This client answers nothing that it is asked.
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.asking.STATUS_SECONDS", 0.05
    )
    with structlog.testing.capture_logs() as logged:
        for name in ("all", "root"):
            async with connected(node, sign=signs(name)) as client:
                await client.beat("c", "g", "T")
                await hostile(client, code)
                client.sign = None
                for wrong in WRONG:
                    fields = {ACCESS_KEY: wrong, SIGNATURE: wrong}
                    assert (await client.ask(code, fields)).code == 16
    failed = [one for one in logged if one["event"] == "remoting: a request failed"]
    assert failed == []
    assert broker_of(node).validate() == ""
