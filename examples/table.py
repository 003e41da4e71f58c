"""A topic as a table of Arrow: JSON messages, read in batches and counted by columns.

    pip install duolog duolog-server pyarrow
    duolog node start --data /tmp/duolog &
    python examples/table.py

`polars.from_arrow(table)` and `table.to_pandas()` take it from there. Larger than memory, or
exactly once: see docs/spark.md.
"""

import asyncio
import contextlib
import io
import json
import os

import duolog
import pyarrow as pa
import pyarrow.json

TOPIC = "visits"
SCHEMA = pa.schema([("page", pa.string()), ("ms", pa.int64())])
STORED = pa.field("stored", pa.timestamp("ms", "UTC"))
EMPTY = SCHEMA.append(STORED).empty_table()


def table_of(batch: duolog.Batch) -> pa.Table:
    """A row for each message of a batch: the fields of its JSON, and when it was stored."""
    lines = io.BytesIO(b"\n".join(batch.body_list()))
    options = pyarrow.json.ParseOptions(SCHEMA, unexpected_field_behavior="ignore")
    rows = pyarrow.json.read_json(lines, parse_options=options)
    times = pa.py_buffer(batch.store_times_ms)  # shared, not copied
    stored = pa.Array.from_buffers(STORED.type, batch.count, [None, times])
    return rows.append_column(STORED, stored)


async def read(client: duolog.Client, group: str, idle: float = 2.0) -> pa.Table:
    """Messages that a group has not read yet, until none comes for `idle` seconds."""
    tables = [EMPTY]
    async with client.consumer(group, TOPIC) as consumer:
        while (batch := await consumer.get_batch(timeout=idle)) is not None:
            tables.append(table_of(batch))
    return pa.concat_tables(tables)


async def main(endpoints: str) -> None:
    async with duolog.Client(endpoints) as client:
        with contextlib.suppress(duolog.TopicExists):
            await client.admin.create_topic(TOPIC, 4)
        async with client.producer() as producer:
            visits = [{"page": f"/{n % 7}", "ms": n % 100} for n in range(10_000)]
            await producer.send_batch(TOPIC, [json.dumps(visit).encode() for visit in visits])
        table = await read(client, "reports")
        for row in table.group_by("page").aggregate([("ms", "mean"), ("ms", "count")]).to_pylist():
            print(row)


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("DUOLOG_ENDPOINTS", "127.0.0.1:8081")))
