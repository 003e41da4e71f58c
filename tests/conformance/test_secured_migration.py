"""A real broker with users (ACL) and TLS alone is planned, followed and cut over."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from duolog_server.compat.remoting.calling import Access, connect, signing
from duolog_server.node.runtime.certificates import Renewed
from duolog_server.node.runtime.tls import Tls, client_context
from tests.certificates import certificates
from tests.conformance.brokers import Cluster, cluster, end_server
from tests.conformance.classic import AWAY, create_topic, send
from tests.conformance.migrated import LEVELS, SEGMENT, SIZES, WAIT_SECONDS, bytes_of, program
from tests.process.support import run_cli
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

SECRETS = {"the-mover": "the secret of the mover", "the-reader": "the secret of the reader"}
ACCOUNTS = """
accounts:
- accessKey: the-mover
  secretKey: {secrets[the-mover]}
  admin: true
- accessKey: the-reader
  secretKey: {secrets[the-reader]}
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""
TLS = """
tls.test.mode.enable=false
tls.server.need.client.auth=require
tls.server.authClient=true
tls.server.certPath={tls.cert}
tls.server.keyPath={tls.key}
tls.server.trustCertPath={tls.ca}
tls.client.authServer=true
tls.client.certPath={tls.cert}
tls.client.keyPath={tls.key}
tls.client.trustCertPath={tls.ca}
"""
MESSAGES = 50


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Cluster, Tls]]:
    """A name server and a broker that take TLS alone, and certificates that they know."""
    tls, file = certificates(tmp_path / "certificates"), tmp_path / "tls.properties"
    file.write_text(TLS.format(tls=tls))
    made = cluster(
        tmp_path,
        "4.9.7",
        java=("-Dtls.server.mode=enforcing", "-Dtls.enable=true", f"-Dtls.config.file={file}"),
        mappedFileSizeCommitLog=SEGMENT,
        messageDelayLevel=LEVELS,
        aclEnable="true",
    )
    users = tmp_path / "home-broker" / "conf" / "plain_acl.yml"
    users.write_text(ACCOUNTS.format(secrets=SECRETS))
    try:
        for server in (made.names, made.broker):
            server.start()
            server.wait_listening(server.endpoint)
        yield made, tls
    finally:
        for server in (made.broker, made.names):
            end_server(server)


def _words(tmp_path: Path, tls: Tls, user: str) -> list[str]:
    """The options of a user."""
    secret = tmp_path / f"{user}.secret"
    secret.write_text(SECRETS.get(user, "the secret of nobody") + "\n")
    return [
        "--broker-access-key", user, "--broker-secret-key-file", str(secret),
        "--broker-tls-ca", str(tls.ca), "--broker-tls-cert", str(tls.cert),
        "--broker-tls-key", str(tls.key),
    ]  # fmt: skip


async def _fill(address: str, access: Access) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:  # it listens before it can be asked
            with suppress(*AWAY):
                await create_topic(address, access)
                break
            await asyncio.sleep(0.1)
    calling = await connect(address, access)
    for number in range(MESSAGES):
        await send(calling, b"%d" % number)
    calling.close()


async def _migrate(*words: str) -> tuple[int, str, str]:
    """Exit status, and what is printed; no secret ever is."""
    done = await asyncio.to_thread(run_cli, "migrate", *words, timeout=WAIT_SECONDS)
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())
    return done.returncode, done.stdout, done.stderr


async def test_a_broker_with_users_and_tls_is_moved(
    tmp_path: Path, secured: tuple[Cluster, Tls]
) -> None:
    made, tls = secured
    mover, data = _words(tmp_path, tls, "the-mover"), tmp_path / "data"
    context = Renewed(tls.files, partial(client_context, verify=True)).now
    await _fill(made.address, Access(signing("the-mover", SECRETS["the-mover"]), context))
    status, _, errors = await _migrate("plan", made.name_server, *SIZES)
    assert (status, made.name_server in errors) == (1, True), "without TLS"
    unsigned = ("plan", made.name_server, *SIZES, *mover[4:], "--json")

    async def planned() -> bool:
        _, told, _ = await _migrate(*unsigned)
        return bool(json.loads(told or "[]"))

    await until(planned, "the name server knows the broker", seconds=WAIT_SECONDS, pause=0.2)
    status, told, _ = await _migrate(*unsigned)
    (row,) = json.loads(told)
    assert (status, "AclException" in row["remarks"][0]["what"]) == (2, True), "without a signature"
    for nobody in (mover[4:], _words(tmp_path, tls, "the-nobody")):
        words = ("--data", str(data), "--broker", made.address, *SIZES, *nobody)
        status, _, errors = await _migrate("follow", *words)
        assert (status, "--broker-access-key KEY" in errors) == (1, True)
        assert not (data / "commitlog").exists()
    status, told, _ = await _migrate("plan", made.name_server, *SIZES, *mover, "--json")
    (row,) = json.loads(told)
    assert (status, row["version"]) == (0, "V4_9_7")

    follower = program(
        data, "follow", "--broker", made.address, *_words(tmp_path, tls, "the-reader")
    )
    await asyncio.to_thread(follower.start)
    try:
        offsets = data / "config" / "consumerOffset.json"
        await until(
            offsets.exists, seconds=WAIT_SECONDS
        )  # a user who is no administrator reads everything
    finally:
        assert await asyncio.to_thread(follower.stop) == 0, follower.log_tail()
    assert "the secret" not in follower.log.read_text()

    words = ("cutover", "--data", str(data), "--yes", *SIZES)
    status, _, errors = await _migrate(*words, *_words(tmp_path, tls, "the-reader"))
    assert (status, "AclException" in errors) == (1, True), "only an administrator changes a broker"
    status, _, errors = await _migrate("abort", "--data", str(data), *SIZES, *mover)
    assert status == 0, errors
    status, told, errors = await _migrate(*words, *mover)
    assert status == 0, errors
    end = row["max_offset"]
    assert f"promoted at offset {end}" in told
    copy, log = bytes_of(data / "commitlog", end), bytes_of(made.store / "commitlog", end)
    assert copy == log
