"""Names of topics and groups: RocketMQ's rule for their characters and lengths.

Commands need it as well: no kernel is loaded with it.
"""

import re

from duolog_server.store.errors import BadMessage

TOPIC_BYTES_MAX = 127
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NOT_OF_NAMES = re.compile(r"[^%|a-zA-Z0-9_-]")


def check_topic(name: str) -> None:
    """Raise BadMessage if a topic's name is invalid: letters, digits, `%|_-`, at most 127 bytes."""
    if not name:
        raise BadMessage("the topic name is empty")
    if len(name) > TOPIC_BYTES_MAX:
        raise BadMessage(f"the topic name has {len(name)} characters, the limit is 127")
    wrong = wrong_characters("topic", name)
    if wrong:
        raise BadMessage(wrong)


def wrong_characters(what: str, name: str) -> str:
    """Why the characters of a topic's or group's name are refused, with a name to use in its place;
    empty where they are not.
    """
    if _NAME.fullmatch(name):
        return ""
    found, usable = sorted(set(_NOT_OF_NAMES.findall(name))), _NOT_OF_NAMES.sub("_", name)
    return (
        f"{what} {name!r} has {''.join(found)!r}: RocketMQ allows letters, digits and %|_- in names"
        f"{f'; try {usable!r}' if usable.strip('_') else ''}"
    )
