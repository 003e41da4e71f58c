"""A web shop with FastAPI: a request sends an order, a worker bills it.

    pip install duolog duolog-server fastapi uvicorn
    duolog node start --data /tmp/duolog &
    uvicorn examples.webshop:app &
    curl localhost:8000/orders --json '{"customer": "ann", "amount": 12.5}'
    curl localhost:8000/billed/ann

One client serves all requests. The worker may as well be a program of its own: `consumer.run` in
`asyncio.run`.
"""

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import AsyncIterator

import duolog
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel


class Order(BaseModel):
    customer: str
    amount: float


billed: defaultdict[str, list[float]] = defaultdict(list)  # a real shop has a database


async def bill(message: duolog.Message) -> None:
    # An error is retried; after the last attempt the message is a dead letter.
    order = Order.model_validate_json(message.body)
    billed[order.customer].append(order.amount)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    endpoints = os.environ.get("DUOLOG_ENDPOINTS", "127.0.0.1:8081")
    async with duolog.Client(endpoints) as client:
        with contextlib.suppress(duolog.TopicExists):
            await client.admin.create_topic("shop-orders", 4)
        async with (
            client.producer() as producer,
            client.consumer("shop-billing", "shop-orders") as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            app.state.producer = producer
            tasks.create_task(consumer.run(bill, concurrency=8, by_key=True))
            yield
            consumer.stop()  # running handlers end; what they handled is committed


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> dict[str, str]:
    body = order.model_dump_json().encode()
    try:
        receipt = await request.app.state.producer.send("shop-orders", body, key=order.customer)
    except duolog.Retryable as error:  # nothing was stored: the customer may try again
        raise HTTPException(503, str(error)) from error
    return {"message": receipt.unique_key}


@app.get("/billed/{customer}")
async def bills(customer: str) -> list[float]:
    return billed[customer]
