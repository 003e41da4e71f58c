"""Origins of web pages (RFC 6454): scheme, host and port, as browsers write them. Pure."""

from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}
URLS_MAX = 16


class BadOrigin(ValueError):
    """A text has no origins; its own text says how they are written."""


def origins_of(text: str) -> tuple[str, ...]:
    """The origins of URLs with commas between them. Raises BadOrigin."""
    urls = [url for url in map(str.strip, text.split(",")) if url]
    if len(urls) > URLS_MAX:
        raise BadOrigin(f"{len(urls)} URLs; at most {URLS_MAX} are taken")
    found = tuple(dict.fromkeys(map(origin_of, urls)))
    if len({origin.partition(":")[0] for origin in found}) > 1:
        raise BadOrigin(f"{text!r} has both http and https: cookies are of one of them")
    return found


def origin_of(url: str) -> str:
    """The origin of a URL without a path. Raises BadOrigin."""
    wrong = BadOrigin(f"{url!r} is not of the form https://HOST or https://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    host, scheme = parts.hostname or "", parts.scheme
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    named = host and host.isascii() and host.isprintable() and " " not in host
    if scheme not in PORTS or not plain or not named or port == 0:
        raise wrong
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" + (f":{port}" if port not in (None, PORTS[scheme]) else "")
