"""A node with users and a certificate, for clients that sign."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duolog.sync
from duolog.testing._node import ChildNode

from duolog_server.node.runtime.tls import Tls
from tests.certificates import certificates
from tests.conformance.conftest import SMALL, rights_of
from tests.keyfiles import access_files

ROOT: dict[str, Any] = {"user": "root", "password": "the password of root"}
Entries = Sequence[tuple[str, str]]


@contextmanager
def node_of_users(
    home: Path,
    users: Mapping[str, tuple[str, Entries]],
    *settings: str,
    client_certs: str = "none",
) -> Iterator[tuple[ChildNode, Tls]]:
    """The node, with the super user ROOT, and a certificate for both ends.

    users: who sign; password and rights by name. settings: more words of its command line.
    client_certs: as in the
    section `tls`.
    """
    tls, access = certificates(home), access_files(home, **ROOT)
    client_ca = "--set", f"tls.client_certs={client_certs}", "--set", f"tls.client_ca={tls.ca}"
    node = ChildNode(
        home / "data", *SMALL,
        "--set", f"tls.cert={tls.cert}",
        "--set", f"tls.key={tls.key}",
        "--set", f"access.key_file={access['key_file']}",
        "--set", f"access.first_user_file={access['first_user_file']}",
        *(client_ca if client_certs != "none" else ()),
        *settings,
    )  # fmt: skip
    node.start()
    node.wait_port()
    with duolog.sync.Client(node.endpoint, timeout=60, **ROOT) as client:
        client.access.create_user(ROOT["user"], ROOT["password"], is_super=True)
        for name, (password, entries) in users.items():
            client.access.create_user(name, password, signs=True)
            client.access.set_rights(name, rights_of(*entries))
    yield node, tls
    assert node.stop() == 0
