"""The topics of a consumer group: what its consumers get again, and its dead letters.

%RETRY%<group>_<topic> holds messages that a group will get again by POP, %RETRY%<group> messages
that its members sent back, and %DLQ%<group> messages that it has given up. Where such a name has
too many bytes for a topic, the SHA-256 of the part behind the prefix takes its place.
"""

import hashlib
from collections.abc import Iterable

from duolog_server.store.names import TOPIC_BYTES_MAX

RETRY, DEAD = PREFIXES = ("%RETRY%", "%DLQ%")
_DIGEST_CHARACTERS = 64


def _named(prefix: str, rest: str) -> str:
    name = prefix + rest
    return name if len(name) <= TOPIC_BYTES_MAX else prefix + _digest(rest)


def _digest(rest: str) -> str:
    return hashlib.sha256(rest.encode()).hexdigest()


def retry_topic(group: str, topic: str) -> str:
    """The retry topic of a group for a topic; a retry topic is its own retry topic."""
    return topic if topic.startswith(RETRY) else _named(RETRY, f"{group}_{topic}")


def group_retry_topic(group: str) -> str:
    """The topic of messages that members of a group sent back."""
    return _named(RETRY, group)


def dead_letter_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return _named(DEAD, group)


def whole_name(topic: str, groups: Iterable[str]) -> str:
    """The name that a group's topic would have without the limit of bytes; any other one's own.

    groups: those with digests are looked for among them, where the name may have one.
    """
    for prefix in PREFIXES:
        rest = topic.removeprefix(prefix)
        if rest != topic and len(rest) == _DIGEST_CHARACTERS:
            long = (name for name in groups if len(prefix) + len(name) > TOPIC_BYTES_MAX)
            return next((prefix + name for name in long if _digest(name) == rest), topic)
    return topic


def group_of(topic: str, groups: Iterable[str]) -> str:
    """The group whose topic a name is; empty for another topic. groups: as in `whole_name`."""
    if not topic.startswith(PREFIXES):
        return ""
    name = whole_name(topic, groups)
    return name.removeprefix(RETRY) if name.startswith(RETRY) else name.removeprefix(DEAD)
