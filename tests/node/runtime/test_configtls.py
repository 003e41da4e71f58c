"""The section [tls] of the configuration."""

from pathlib import Path
from typing import Any

import pytest

from duolog_server.demo.certificates import Authority
from duolog_server.node.runtime.config import ConfigError, load


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Any]:
    """Of a node that speaks TLS only."""
    authority = Authority(tmp_path)
    node = authority.issue("node")
    return {"cert": str(node.cert), "key": str(node.key), "only": True}


def refused(section: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(flags={"tls": section})


def test_what_serves_tls_is_taken(tls: dict[str, Any], tmp_path: Path) -> None:
    load(flags={"tls": tls})
    load(flags={"tls": {**tls, "only": False, "listen": "127.0.0.1:1"}})
    ca = str(tmp_path / "ca.pem")
    load(flags={"tls": {**tls, "client_certs": "required", "client_ca": ca}})
    both = {"client_certs": "optional", "client_ca": ca, "listen": "127.0.0.1:1"}
    load(flags={"tls": {**tls, **both}})
    remoting: dict[str, object] = {"listen": "127.0.0.1:1"}
    load(flags={"tls": {**tls, "only": False}, "remoting": remoting})
    load(flags={"tls": tls, "remoting": remoting})
    load(flags={"remoting": remoting})
    with pytest.raises(ConfigError, match=r"TLS on remoting\.listen need tls\.cert"):
        load(flags={"tls": {"cert": tls["cert"]}, "remoting": remoting})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"cert": None},
            "tls.listen, tls.only, metrics.tls, console.tls and TLS on remoting.listen need ",
        ),
        ({"key": None}, "need tls.cert and tls.key"),
        ({"only": False}, "no port speaks TLS: set tls.only, or tls.listen"),
        ({"listen": "127.0.0.1:1"}, "leave out tls.listen"),
        ({"listen": "here"}, "not of the form HOST:PORT"),
        ({"client_certs": "required"}, "client_ca and tls.client_certs .* set together"),
        ({"client_certs": "sometimes"}, "'none', 'optional' or 'required'"),
        ({"cert": "/none.pem"}, "tls: cannot read /none.pem: No such file"),
    ],
)
def test_contradictions_name_the_keys(tls: dict[str, Any], change: Any, why: str) -> None:
    refused({**tls, **change}, why)


def test_keys_that_need_each_other_and_files_of_etcd_are_checked(
    tls: dict[str, Any], tmp_path: Path
) -> None:
    ca = str(tmp_path / "ca.pem")
    refused({**tls, "client_ca": ca}, "client_ca and tls.client_certs .* set together")
    refused({**tls, "client_ca": ca, "client_certs": "optional"}, "needs tls.only and tls.listen")
    second = {"only": False, "listen": "127.0.0.1:1"}
    refused({**tls, **second, "ca": ca}, r"tls.ca needs tls.only")
    refused({**tls, "ca": "/none.pem"}, "tls: cannot read /none.pem")
    refused({"client_ca": ca, "client_certs": "required"}, "no port speaks TLS")
    with pytest.raises(ConfigError, match=r"registry.tls_\*: cannot read /none.pem"):
        load(flags={"registry": {"tls_ca": "/none.pem"}})
    with pytest.raises(ConfigError, match=r"registry.tls_cert needs registry.tls_ca"):
        load(flags={"registry": {"tls_cert": tls["cert"], "tls_key": tls["key"]}})


def test_a_key_of_another_certificate_is_refused_and_an_expired_certificate_is_not(
    tls: dict[str, Any], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "other")
    other = authority.issue("other")
    refused({**tls, "key": str(other.key)}, r"tls: .*other.key is not the key of .*node.pem")
    old = authority.issue("old", days=0)
    load(flags={"tls": {**tls, "cert": str(old.cert), "key": str(old.key)}})


def test_the_metrics_or_the_console_alone_may_speak_tls(tls: dict[str, Any]) -> None:
    files = {**tls, "only": False}
    load(flags={"tls": files, "metrics": {"listen": "127.0.0.1:1", "tls": True}})
    with pytest.raises(ConfigError, match=r"metrics\.tls, console\.tls and TLS on"):
        load(flags={"metrics": {"listen": "127.0.0.1:1", "tls": True}})
    with pytest.raises(ConfigError, match=r"metrics\.tls needs metrics\.listen"):
        load(flags={"tls": tls, "metrics": {"tls": True}})
    files = {**tls, "only": False}
    load(flags={"tls": files, "console": {"listen": "127.0.0.1:1", "tls": True}})
    with pytest.raises(ConfigError, match=r"console\.tls and TLS on"):
        load(flags={"console": {"listen": "127.0.0.1:1", "tls": True}})
    with pytest.raises(ConfigError, match=r"console\.tls needs console\.listen"):
        load(flags={"tls": tls, "console": {"tls": True}})
    required = {**tls, "client_certs": "required", "client_ca": tls["cert"]}
    load(flags={"tls": required})
    with pytest.raises(ConfigError, match=r"console\.listen does not work with"):
        load(flags={"tls": required, "console": {"listen": "127.0.0.1:1"}})


def test_the_console_behind_a_proxy_has_names(tls: dict[str, Any]) -> None:
    at: dict[str, Any] = {"listen": "127.0.0.1:1"}
    config, _ = load(flags={"console": {**at, "url": "https://a.example/, https://b.example:444"}})
    assert config.console.origins == ("https://a.example", "https://b.example:444")
    assert load(flags={"console": at})[0].console.origins == ()
    with pytest.raises(ConfigError, match=r"console\.url.*not of the form https://HOST"):
        load(flags={"console": {**at, "url": "a.example"}})
    with pytest.raises(ConfigError, match=r"console\.url needs console\.listen"):
        load(flags={"console": {"url": "https://a.example"}})
    with pytest.raises(ConfigError, match=r"console\.url is http://"):
        load(flags={"tls": tls, "console": {**at, "tls": True, "url": "http://a.example"}})
