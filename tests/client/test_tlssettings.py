"""TLS as texts say it: one reader for Spark's options, flags, variables and contexts."""

from typing import Any

import duolog
import pytest
from duolog import Tls
from duolog._caller import Caller
from duolog._runtime import MACHINE
from duolog._tls import TLS_SETTINGS, tls_in, tls_texts

SPELLED = {name: f"<{name}>" for name in TLS_SETTINGS}
SPARK = {"tls": "tls", "ca": "tlsCa", "cert": "tlsCert", "key": "tlsKey", "port": "tlsPort"}


def settings(**said: str) -> dict[str, str]:
    return {"tls" if name == "tls" else f"tls_{name}": text for name, text in said.items()}


TAKEN: list[tuple[dict[str, str], Tls | None]] = [
    ({}, None),
    ({"tls": ""}, None),
    ({"port": "0"}, None),
    ({"tls": "true"}, Tls()),
    ({"tls": "On"}, Tls()),
    ({"tls": "off"}, None),
    ({"tls": "FALSE", "ca": "ca.pem"}, None),
    ({"ca": "ca.pem"}, Tls("ca.pem")),
    ({"port": "8443"}, Tls(port=8443)),
    ({"cert": "c", "key": "k"}, Tls(None, "c", "k")),
    ({"tls": "on", "ca": "ca", "cert": "c", "key": "k", "port": "1"}, Tls("ca", "c", "k", 1)),
]
REFUSED = [
    ({"tls": "1"}, "<tls>: '1' is neither true nor false"),
    ({"tls": "yes"}, "<tls>: 'yes'"),
    ({"port": "x"}, "<tls_port>: 'x' is not a port"),
    ({"port": "-1"}, "<tls_port>: '-1'"),
    ({"port": "65536"}, "<tls_port>: '65536'"),
    ({"port": "\u0661"}, "<tls_port>: "),  # a digit, of another script
    ({"cert": "c"}, "<tls_cert> goes with <tls_key>: give both"),
    ({"key": "k", "tls": "on"}, "<tls_cert> goes with <tls_key>: give both"),
]


@pytest.mark.parametrize(("said", "wanted"), TAKEN)
def test_what_is_said_is_read_alike(said: dict[str, str], wanted: Tls | None) -> None:
    assert tls_in(settings(**said), SPELLED) == wanted
    option: Any = {SPARK[name]: text for name, text in said.items()}
    assert Caller.of(lambda name: option.get(name, "")).tls == wanted


@pytest.mark.parametrize(("said", "why"), REFUSED)
def test_an_error_is_in_the_words_of_its_user(said: dict[str, str], why: str) -> None:
    with pytest.raises(duolog.BadRequest) as refused:
        tls_in(settings(**said), SPELLED)
    assert why in str(refused.value)
    option: Any = {SPARK[name]: text for name, text in said.items()}
    with pytest.raises(duolog.BadRequest, match=r"^option 'tls"):
        Caller.of(lambda name: option.get(name, ""))


def test_what_is_written_is_read_as_it_was() -> None:
    for _, tls in TAKEN:
        assert tls_in(tls_texts(tls), SPELLED) == tls


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"user": "ann"}, "option 'user' needs 'password' or 'passwordFile'"),
        ({"password": "p"}, "option 'user' needs"),
        ({"user": "ann", "password": "p", "passwordFile": "f"}, "one of the options 'password'"),
    ],
)
def test_a_job_that_gives_half_of_a_login_is_told_the_options(
    option: dict[str, str], why: str
) -> None:
    with pytest.raises(duolog.BadRequest, match=why):
        Caller.of(lambda name: option.get(name, ""))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Tls(cert=__file__), "both cert and key"),
        (Tls(key=__file__), "both cert and key"),
        (Tls(port=-1), "the port for TLS is -1"),
        (Tls(port=65536), "the port for TLS is 65536"),
    ],
)
def test_half_of_a_certificate_and_what_is_no_port_are_refused(wrong: Tls, why: str) -> None:
    """A node that asks for none would take the client as one without a certificate."""
    with pytest.raises(duolog.BadRequest, match=why):
        wrong.over(MACHINE)
