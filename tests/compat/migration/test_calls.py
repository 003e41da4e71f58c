"""Calls to a broker that is followed: its answers, and as whom it is called."""

import json
import ssl
from functools import partial
from pathlib import Path

import pytest

from duolog_server.compat.migration import rocketmqbroker
from duolog_server.compat.migration.rocketmqbroker import BadAnswer, OldBroker
from duolog_server.compat.remoting.calling import Access, CallRefused, signing
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import RESPONSE, Command
from duolog_server.node.runtime.certificates import CertificateFiles, Renewed, read
from duolog_server.node.runtime.tls import client_context, server_context
from tests.certificates import certificates
from tests.compat.migration.master import HandMaster, serving, written


class Beginning(HandMaster):
    """Refuses to tell of itself some times, as a broker does in its first second."""

    refusals = 0

    def answer(self, request: Command) -> Command:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self.refusals += 1
            if self.refusals < 3:
                return request.answer(1, "java.util.NoSuchElementException")
        return super().answer(request)


async def test_a_broker_that_has_just_begun_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmqbroker, "AGAIN_SECONDS", 0.001)
    log = written(tmp_path, 3)
    async with serving(Beginning(log)) as master:
        broker = OldBroker(master.address)
        assert (await broker.runtime()).end == len(log)
        broker.close()


async def test_a_broker_that_goes_on_refusing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmqbroker, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(rocketmqbroker, "BEGINNING_SECONDS", 0.02)
    async with serving(HandMaster(written(tmp_path, 3))) as master:
        master.refused = {RequestCode.GET_BROKER_RUNTIME_INFO}
        broker = OldBroker(master.address)
        with pytest.raises(CallRefused, match="not today"):
            await broker.runtime()
        broker.close()


@pytest.mark.parametrize(
    ("first", "end"), [("0", "1e9"), ("0", "9" * 5000), ("0", str(1 << 63)), ("9", "8"), ("x", "9")]
)
async def test_offsets_that_no_log_has_are_told(
    monkeypatch: pytest.MonkeyPatch, first: str, end: str
) -> None:
    table = {"table": {"commitLogMinOffset": first, "commitLogMaxOffset": end}}
    monkeypatch.setattr(HandMaster, "_body", lambda self, code: json.dumps(table).encode())
    async with serving(HandMaster(b"")) as master:
        broker = OldBroker(master.address)
        with pytest.raises(BadAnswer, match=master.address):
            await broker.runtime()
        broker.close()


async def test_a_broker_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmqbroker, "BODY_SECONDS", 0.02)
    nothing = Command(0, -1, flag=RESPONSE)
    monkeypatch.setattr(HandMaster, "answer", lambda self, request: nothing)
    async with serving(HandMaster(b"")) as master:
        broker = OldBroker(master.address)
        with pytest.raises(TimeoutError, match=f"{master.address} did not answer request 26"):
            await broker.settings()
        broker.close()


async def test_a_broker_with_users_is_called_as_one_of_them() -> None:
    async with serving(HandMaster(b"", secrets={"mover": "a secret of the test"})) as master:
        for access in (
            Access(),
            Access(signing("mover", "another secret")),
            Access(signing("nobody", "a secret of the test")),
        ):
            broker = OldBroker(master.address, access)
            with pytest.raises(CallRefused, match="AclException") as refused:
                await broker.settings()
            assert refused.value.is_denial
            assert "secret of" not in str(refused.value)
            broker.close()
        access = Access(signing("mover", "a secret of the test"))
        assert "a secret" not in repr(access)
        broker = OldBroker(master.address, access)
        assert (await broker.settings())["brokerName"] == "broker-a"
        await broker.change({"brokerRole": "SLAVE"})  # a body is signed, too
        assert master.settings["brokerRole"] == "SLAVE"
        broker.close()


async def test_a_broker_with_tls_is_called_with_the_certificates_given(tmp_path: Path) -> None:
    ours, others = certificates(tmp_path / "ours"), certificates(tmp_path / "others")
    served = server_context(read(ours.files), ssl.CERT_REQUIRED)
    files = ours.files

    def access(chosen: CertificateFiles, name: str = "", *, verify: bool = True) -> Access:
        return Access(None, Renewed(chosen, partial(client_context, verify=verify)).now, name)

    async with serving(HandMaster(b""), served) as master:
        for wrong in (
            Access(),
            access(CertificateFiles(others.ca, ours.cert, ours.key)),
            access(CertificateFiles(ours.ca)),
            access(files, "another.example"),
        ):
            broker = OldBroker(master.address, wrong)
            with pytest.raises(ConnectionError, match=master.address):
                await broker.settings()
            broker.close()
        for right in (
            access(files),
            access(files, "localhost"),
            access(CertificateFiles(None, ours.cert, ours.key), verify=False),
        ):
            broker = OldBroker(master.address, right)
            assert (await broker.settings())["brokerName"] == "broker-a"
            broker.close()
