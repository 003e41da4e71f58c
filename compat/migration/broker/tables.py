"""The tables that a broker of RocketMQ keeps beside its log: topics, groups, offsets, delays.

They are written as the broker writes them, into the files in which its own directory has them. So a
node that starts on the directory finds what RocketMQ would have left there, and stores it in its
log. consumerFilter.json is not read: consumers name their expressions again when they connect.
"""

from collections.abc import Mapping

from duolog_server.compat.migration.broker.calls import BadAnswer, OldBroker
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.store import jsontext
from duolog_server.store.disk import Disk
from duolog_server.store.metadata import NOT_THE_SHAPE, Metadata
from duolog_server.store.metadatafiles import DELAYS, EXPORTS, GROUPS, OFFSETS, TOPICS

_CODES = {
    TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAYS: RequestCode.GET_ALL_DELAY_OFFSET,
}
_ADOPT = {export.path: export.adopt for export in EXPORTS}
_EMPTY = b'{"offsetTable":{}}'


async def read_tables(broker: OldBroker) -> dict[str, bytes]:
    """The texts of all tables, by the path of their file.

    Raises CallRefused, BadAnswer, OSError, TimeoutError.
    """
    texts = {path: await broker.table(code) for path, code in _CODES.items()}
    # A broker on which no message was ever delayed has no such file.
    texts[DELAYS] = texts[DELAYS] or _EMPTY
    parsed(texts)
    return {path: text.strip() for path, text in texts.items()}


def parsed(texts: Mapping[str, bytes]) -> Metadata:
    """The tables in these texts. Raises BadAnswer."""
    tables = Metadata()
    for path, text in texts.items():
        try:
            _ADOPT[path](tables, jsontext.loads(text.decode()))
        except NOT_THE_SHAPE as error:
            raise BadAnswer(f"the broker's table for {path} has another form: {error!r}") from None
    return tables


def save_tables(disk: Disk, texts: Mapping[str, bytes], saved: Mapping[str, bytes]) -> None:
    """Replace the files whose texts changed since they were saved. Raises OSError."""
    for path, text in texts.items():
        if saved.get(path) != text:
            jsontext.replace(disk, path, text)
