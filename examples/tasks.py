"""Tasks of TaskIQ over a topic: retries with a growing delay, and a task that runs later.

    pip install 'duolog[taskiq]' duolog-server
    duolog node start --data /tmp/duolog &
    taskiq worker examples.tasks:broker &
    python examples/tasks.py

A worker that is killed loses nothing: what it had not finished runs in another one.
"""

import asyncio
import os

from duolog.taskiq import DuologBroker
from taskiq import Context, SmartRetryMiddleware, TaskiqDepends

broker = DuologBroker(
    os.environ.get("DUOLOG_ENDPOINTS", "127.0.0.1:8081"), topic="tasks", group="workers"
).with_middlewares(SmartRetryMiddleware(default_delay=2, use_delay_exponent=True))


@broker.task(retry_on_error=True, max_retries=5)
async def charge(customer: str, amount: float, context: Context = TaskiqDepends()) -> None:
    """Fails the first time, as services do now and then."""
    if "_retries" not in context.message.labels:
        raise ConnectionError("the bank does not answer")
    print(f"charged {customer} {amount:.2f}", flush=True)


@broker.task
async def remind(customer: str) -> None:
    print(f"reminded {customer}", flush=True)


async def main() -> None:
    await broker.startup()
    await charge.kiq("ann", 12.5)
    await remind.kicker().with_labels(delay=3).kiq("ann")  # the node keeps it for 3 seconds
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
