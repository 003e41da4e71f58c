"""What a side answered and delivered: texts by name, without what differs from run to run.

Ids and places in the log are replaced by words, times by whether they are of this run. Of a remark
only is noted whether there is one: programs show it to people.
"""

import re
import time
from collections.abc import Mapping

from duolog_server.compat.remoting.codec.command import Command
from duolog_server.store.errors import BadMessage
from duolog_server.store.record import Record, parse_message_id

OFFSET_ID, TIME, PLACE = "<offset id>", "<time>", "<place>"
RUN_MS = 600_000  # a time that is no farther away is of this run
IDS = re.compile(r"[0-9A-F]{32}(,[0-9A-F]{32})*")
MADE = re.compile(r"[0-9A-F]{40,}")  # longer than those of the requests: a broker of RocketMQ 5's
TIMES = ("timestamp", "indexLastUpdateTimestamp", "lastUpdateTimestamp")
PLACES = ("commitLogOffset", "tranStateTableOffset", "indexLastUpdatePhyoffset")
LONG = 200  # characters of a text that are noted


class Seen:
    """Notes of one side."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def note(self, name: str, value: object) -> None:
        """One observation; each name is used once."""
        assert name not in self.rows, name
        self.rows[name] = str(value)[:LONG]

    def answer(self, name: str, answer: Command, *left_out: str) -> None:
        """Code and fields of a response, and the remark of one that refuses."""
        self.note(f"{name}: code", answer.code)
        if answer.code:
            self.note(f"{name}: remark", "yes" if answer.remark else "no")
        for field, value in sorted(answer.fields.items()):
            if field not in left_out:
                self.note(f"{name}: {field}", plain(field, value))

    def record(self, name: str, record: Record, *left_out: str) -> None:
        """A delivered message with all that a client sees of it."""
        facts: dict[str, object] = {
            "topic": record.topic,
            "queue": record.queue_id,
            "queueOffset": record.queue_offset,
            "flag": record.flag,
            "sysFlag": record.sysflag,
            "bornTime": plain("timestamp", str(record.born_time)),
            "bornHost": record.born_host.address,
            "storeTime": plain("timestamp", str(record.store_time)),
            "reconsumeTimes": record.reconsume_times,
            "prepared": PLACE if record.prepared_offset else 0,
            "body": record.body[:LONG],
        }
        for fact in sorted(facts.keys() - set(left_out)):
            self.note(f"{name}: {fact}", facts[fact])
        self.properties(name, record.properties)

    def properties(self, name: str, properties: Mapping[str, str]) -> None:
        """The properties of a message."""
        for key, value in properties.items():
            self.note(f"{name}: property {key}", plain(key, value))


def plain(name: str, value: str) -> str:
    """A value without what is different each time."""
    if name in TIMES and value.isdecimal():
        return TIME if abs(int(value) - time.time() * 1000) < RUN_MS else value
    if name in PLACES and value.isdecimal():
        return PLACE
    if MADE.fullmatch(value):
        return "<an id>"
    if IDS.fullmatch(value):
        return ",".join(map(_id, value.split(",")))
    return value


def _id(text: str) -> str:
    """An offset id of this machine as a word; others are ids of clients."""
    try:
        host, offset = parse_message_id(text)
    except BadMessage:
        return text
    return OFFSET_ID if host.address == "127.0.0.1" and 0 <= offset < 1 << 32 else text


__all__ = ["Seen", "plain"]
