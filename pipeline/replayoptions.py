"""The options of a replay."""

from dataclasses import dataclass

from duolog._caller import NOBODY, Caller


@dataclass(frozen=True)
class Replay:
    """Source, destination and shape of the rows.

    | field | means |
    |-------|-------|
    | endpoints, topic | where to |
    | path, format | files: parquet, json (lines) or csv (with a header) |
    | source | or a topic of the same cluster |
    | sql | a SELECT over the view `source`; its columns are what is meant below |
    | body | column that is the body; default: the whole row as JSON |
    | key, tags, time | columns: the key (it chooses the queue), the tags, the event's time |
    | order | columns to order by; rows of one key keep that order in their queue |
    | rate | messages a second; 0: as fast as it goes |
    | name | identifies these rows, which are sent once over all runs; default: a new name |
    | caller | as whom the cluster is called |
    """

    endpoints: str
    topic: str
    path: str = ""
    format: str = ""
    source: str = ""
    sql: str = ""
    body: str = ""
    key: str = ""
    tags: str = ""
    time: str = ""
    order: tuple[str, ...] = ()
    rate: float = 0.0
    name: str = ""
    caller: Caller = NOBODY
