"""The metrics port: what it answers, and what no client can do to it."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.node.api.reservedport import ListenError
from duolog_server.node.metrics import endpoint
from duolog_server.node.metrics.endpoint import Endpoint
from duolog_server.node.runtime.config import Config, ConfigError, load
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.scraping import get, scraped
from tests.until import until


@pytest.fixture
async def made() -> AsyncIterator[Endpoint]:
    """An endpoint that answers `1` in two pieces."""

    async def scrape(deadline: float) -> list[bytes]:
        assert deadline > asyncio.get_running_loop().time()
        return [b"a ", b"1\n"]

    one = Endpoint(scrape, "text/plain; version=0.0.4")
    await one.start("127.0.0.1", 0)
    yield one
    await one.stop()


async def raw(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?name=x", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "//metrics", 404),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 405),
    ],
)
async def test_one_path_and_one_method_are_answered(
    made: Endpoint, method: str, path: str, status: int
) -> None:
    found, _, body = await asyncio.to_thread(get, made.port, path, method)
    assert found == status
    assert (body == "a 1\n") == (status == 200)


async def test_what_is_no_request_is_refused(made: Endpoint) -> None:
    for request in (b"\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"GET /metrics\r\n\r\n"):
        assert (await raw(made.port, request)).startswith(b"HTTP/1.1 400 ")
    long = b"GET /metrics HTTP/1.1\r\nX: ".ljust(endpoint.REQUEST_BYTES_MAX + 10, b"x")
    assert (await raw(made.port, long)).startswith(b"HTTP/1.1 431 ")
    assert (await raw(made.port, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\na 1\n")


async def test_a_silent_client_is_left_at_the_deadline(
    made: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "DEADLINE_SECONDS", 0.05)
    assert await raw(made.port, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_only_so_many_connections_are_open_and_the_oldest_idle_one_gives_way(
    made: Endpoint,
) -> None:
    idle = [
        await asyncio.open_connection("127.0.0.1", made.port)
        for _ in range(endpoint.CONNECTIONS_MAX)
    ]
    idle[1][1].write(b"GET /metrics HTTP/1.1\r\nX: half of a head")
    try:
        for number in range(3):
            answer = await raw(made.port, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert answer.endswith(b"a 1\n"), number
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await idle[0][0].read() == b""
        _, second = idle[2]
        second.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await idle[2][0].read()).endswith(b"a 1\n"), "no more than one had to go"
    finally:
        for _, writer in idle:
            writer.close()


async def test_a_scrape_under_way_gives_way_to_none_and_ends_at_a_stop() -> None:
    begun, answer = 0, asyncio.Event()

    async def scrape(deadline: float) -> list[bytes]:
        nonlocal begun
        begun += 1
        await answer.wait()
        return [b"a 1\n"]

    busy = Endpoint(scrape, "text/plain")
    await busy.start("127.0.0.1", 0)
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    asking = [asyncio.ensure_future(raw(busy.port, request)) for _ in range(16)]
    try:
        await until(lambda: begun == endpoint.CONNECTIONS_MAX == len(asking))
        assert await raw(busy.port, request) == b"", "refused at once"
        answer.set()
        assert all(found.endswith(b"a 1\n") for found in await asyncio.gather(*asking))
    finally:
        await busy.stop()
    slowly = asyncio.Event()

    async def hang(deadline: float) -> list[bytes]:
        slowly.set()
        await asyncio.sleep(60)
        return []

    slow = Endpoint(hang, "text/plain")
    await slow.start("127.0.0.1", 0)
    asked = asyncio.ensure_future(raw(slow.port, b"GET /metrics HTTP/1.1\r\n\r\n"))
    async with asyncio.timeout(10):
        await slowly.wait()
        await slow.stop()
        assert await asked == b""


@pytest.mark.parametrize("more", [b"", b"what follows is not read as another request\r\n\r\n"])
async def test_a_scrape_ends_when_its_client_is_gone(more: bytes) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def scrape(deadline: float) -> list[bytes]:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    slow = Endpoint(scrape, "text/plain")
    await slow.start("127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", slow.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n" + more)
        async with asyncio.timeout(60):
            await begun.wait()
            assert not ended.is_set()
            writer.close()
            await ended.wait()
    finally:
        await slow.stop()


@pytest.mark.parametrize(("error", "status"), [(TimeoutError(), 503), (ValueError("bug"), 500)])
async def test_a_scrape_that_fails_is_answered_and_the_next_one_is_made(
    error: Exception, status: int
) -> None:
    async def scrape(deadline: float) -> list[bytes]:
        raise error

    failing = Endpoint(scrape, "text/plain")
    await failing.start("127.0.0.1", 0)
    try:
        for _ in range(2):
            found, _, body = await asyncio.to_thread(get, failing.port)
            assert found == status
            assert "bug" not in body
    finally:
        await failing.stop()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("", 10), ("3", 3), ("2.5", 2.5), ("60", 10), ("0", 10), ("-1", 10), ("nan", 10), ("x", 10)],
)
async def test_a_scrape_has_as_long_as_prometheus_waits(header: str, seconds: float) -> None:
    given: list[float] = []

    async def scrape(deadline: float) -> list[bytes]:
        given.append(deadline - asyncio.get_running_loop().time())
        return [b"1\n"]

    one = Endpoint(scrape, "text/plain")
    await one.start("127.0.0.1", 0)
    line = f"x-prometheus-scrape-timeout-seconds: {header}\r\n".encode() if header else b""
    try:
        await raw(one.port, b"GET /metrics HTTP/1.1\r\n" + line + b"\r\n")
    finally:
        await one.stop()
    assert 0 < given[0] <= seconds


# -- in a node ---------------------------------------------------------------------------------


async def test_the_port_is_optional_and_closed_with_the_node(start_node: StartNode) -> None:
    node = await start_node()
    assert node.metrics is None
    await node.stop()
    node = await start_node(metrics={"listen": "127.0.0.1:0"})
    assert node.metrics is not None
    port = node.metrics.port
    await scraped(port)
    await node.stop()
    with pytest.raises(ConnectionRefusedError):
        await raw(port, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_an_address_in_use_is_reported_before_the_directory_is_created(
    start_node: StartNode, made: Endpoint
) -> None:
    taken = f"127.0.0.1:{made.port}"
    with pytest.raises(ListenError, match=f"cannot listen on {taken}"):
        await start_node(metrics={"listen": taken})


@pytest.mark.parametrize(
    ("key", "clash"),
    [
        ("node", {"listen": "127.0.0.1:5557", "frames_listen": ""}),
        ("node", {"frames_listen": "127.0.0.1:05557"}),
        ("ha", {"listen": "0.0.0.0:5557"}),
    ],
)
async def test_a_port_that_another_key_has_is_a_fault_of_the_configuration(
    key: str, clash: dict[str, str], tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "node": {"data": tmp_path / "data"},
        "metrics": {"listen": "127.0.0.1:5557"},
    }
    sections[key] = {**sections.get(key, {}), **clash}
    config = Config.model_validate(sections)
    with pytest.raises(ConfigError, match=r"metrics\.listen = 127\.0\.0\.1:5557 are the same port"):
        await Node(config).start()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("a:1", "a:1", True),
        ("a:1", "a:2", False),
        ("a:0", "a:0", False),
        ("a:1", "b:1", False),
        ("0.0.0.0:1", "10.0.0.1:1", True),
        ("a:1", "0.0.0.0:1", True),
        ("0.0.0.0:1", "[::1]:1", False),
        ("[::]:1", "[::1]:1", True),
        ("[::]:1", "0.0.0.0:1", True),
        ("[::]:1", "10.0.0.1:1", True),
    ],
)
def test_two_addresses_clash_where_one_contains_the_other(
    one: str, other: str, clash: bool
) -> None:
    config = Config.model_validate(
        {"node": {"listen": one, "frames_listen": ""}, "metrics": {"listen": other}}
    )
    if clash:
        with pytest.raises(ConfigError, match="are the same port"):
            config.check()
    else:
        config.check()


@pytest.mark.parametrize("listen", ["5557", "localhost", ":5557", "localhost:70000"])
def test_an_invalid_address_is_reported(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen: .*is not of the form HOST:PORT"):
        load(flags={"metrics": {"listen": listen}})


def test_metrics_are_off_by_default() -> None:
    assert Config().metrics.listen == ""


async def asked(port: int, *headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    lines = "".join(f"{header}\r\n" for header in headers)
    answer = await raw(port, f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode())
    return int(answer.split(b" ", 2)[1]), answer.decode()


async def test_where_there_are_users_one_of_them_asks(
    start_node: StartNode, tmp_path: Path
) -> None:
    access = access_files(tmp_path, "secret")
    node = await start_node(access=access, metrics={"listen": free_endpoint()})
    assert node.metrics is not None
    port = node.metrics.port
    async with duolog.Client(f"127.0.0.1:{node.port}", user="root", password="secret") as root:
        await root.access.create_user("root", "secret", is_super=True)
        await root.access.create_user("prometheus", "secret")
        words = "Authorization: Basic " + base64.b64encode(b"prometheus:secret").decode()
        unknown = ("Basic x", "Bearer x", "Basic \u00e9", "Basic \u00e9:\u00e9")
        for headers in ((), *((f"Authorization: {word}",) for word in unknown)):
            status, text = await asked(port, *headers)
            assert status == 401
            assert "WWW-Authenticate: Basic" in text
            assert "messages" not in text
        status, text = await asked(port, words)
        assert (status, "prometheus" in text) == (403, True)
        await root.access.set_rights(
            "prometheus",
            '{"policies": [{"policyType": "Custom", "entries": [{"resource": "Cluster:*", '
            '"actions": ["Get"], "decision": "Allow"}]}]}',
        )
        status, text = await asked(port, words.replace("Authorization", "AUTHORIZATION"))
        assert (status, "duolog" in text) == (200, True)
        await root.access.alter_user("prometheus", disabled=True)
        assert (await asked(port, words))[0] == 401
