"""The authenticator of frames connections: who may begin, and who is noted."""

from types import SimpleNamespace
from typing import Any

from duolog_server.node.api.append_access import FramesAuthenticator
from duolog_server.node.identity.access.gate import Principal
from duolog_server.store.record import Host


def test_a_key_with_the_certificate_of_another_user_is_refused_and_noted() -> None:
    noted: list[tuple[str, str, str, str]] = []

    def note(principal: Principal, method: str, resource: str, error: Exception) -> None:
        noted.append((principal.name, principal.source, method, str(error)))

    alice = Principal("alice", "", "10.0.0.1")
    guard: Any = SimpleNamespace(denied=note, appends_of=lambda *_: "appends")
    keys: Any = SimpleNamespace(take=lambda key: (key == b"k", alice if key == b"k" else None))
    none: Any = None
    authenticator = FramesAuthenticator(keys, none, guard, none)
    here = Host("10.0.0.7", 1)
    assert authenticator.admit(b"x", here, "") is None
    assert authenticator.admit(b"k", here, "bob") is None
    assert noted == [
        (
            "alice",
            "10.0.0.7",
            "frames",
            "the certificate is that of 'bob', the key is another user's",
        )
    ]
    for certificate in ("", "alice"):
        assert authenticator.admit(b"k", here, certificate) is not None
    assert len(noted) == 1
