"""An order in an SQL database and its message to others: both, or neither.

The message is stored first, as a half message that nobody sees. The database's own transaction then
decides: committed, and consumers get the message; rolled back, and it is gone. If this program dies
between the two, the node asks a program of the same group, whose `check` looks into the table. So
there is no outbox table to poll or to clean up.

    pip install duolog duolog-server
    duolog node start --data /tmp/duolog &
    python examples/outbox.py
"""

import asyncio
import contextlib
import json
import os
import sqlite3

import duolog

# A transaction of the database must end within this time: after it, `check` is asked.
IMMUNITY_SECONDS = 60


def connected(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount REAL)")
    return database


class Shop:
    def __init__(self, client: duolog.Client, database: sqlite3.Connection) -> None:
        self.database = database
        self.transactions = client.transactions("shop", self.check, immunity=IMMUNITY_SECONDS)

    async def place(self, order: str, amount: float) -> None:
        body = json.dumps({"id": order, "amount": amount}).encode()
        async with self.transactions.begin("outbox-orders", body, key=order):
            self.insert(order, amount)  # what this raises rolls both back

    def insert(self, order: str, amount: float) -> None:
        with self.database:  # one transaction
            self.database.execute("INSERT INTO orders VALUES (?, ?)", (order, amount))

    async def check(self, message: duolog.UndecidedMessage) -> bool:
        """Whether the order of an undecided message was stored."""
        order = json.loads(message.body)["id"]
        found = self.database.execute("SELECT 1 FROM orders WHERE id = ?", (order,)).fetchone()
        return found is not None


async def main(endpoints: str) -> None:
    async with duolog.Client(endpoints) as client:
        with contextlib.suppress(duolog.TopicExists):
            await client.admin.create_topic("outbox-orders", 4)
        shop = Shop(client, connected("orders.sqlite"))
        async with shop.transactions, client.consumer("outbox-mail", "outbox-orders") as consumer:
            for order in ("order-1", "order-1"):
                try:
                    await shop.place(order, 12.5)
                except sqlite3.IntegrityError as error:
                    print(f"not placed, and nobody hears of it: {error}")
            while (message := await consumer.get(timeout=2.0)) is not None:
                print(f"mail about {message.body.decode()}")


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("DUOLOG_ENDPOINTS", "127.0.0.1:8081")))
