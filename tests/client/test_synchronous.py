"""The synchronous client: what its end tells, and what a forked process gets of it."""

import os
import signal
import time
from typing import Any

import duolog
import duolog.sync
import pytest
from duolog._receipts import Part


def test_the_synchronous_clients_close_tells_of_a_message_that_failed() -> None:
    async def refuse(batch: Any, seconds: float) -> list[Part]:
        raise duolog.Unavailable("no node")

    def post(client: duolog.sync.Client) -> None:
        producer = client.producer()
        producer._producer._sender.send = refuse  # type: ignore[method-assign]
        producer.post("T", b"x")

    client = duolog.sync.Client("127.0.0.1:1", timeout=0.2)
    post(client)
    with pytest.raises(duolog.Unavailable, match="no node"):
        client.close()
    client.close()  # again: nothing is left to tell
    with pytest.raises(KeyError), duolog.sync.Client("127.0.0.1:1", timeout=0.2) as client:
        post(client)
        raise KeyError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_told_that_the_client_is_its_parents() -> None:
    with duolog.sync.Client("127.0.0.1:1", timeout=0.2) as client:
        producer = client.producer()
        child = os.fork()
        if child == 0:
            os._exit(_refusals_in_a_child(client, producer))
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                ended = os.waitpid(child, 0)
                break
            time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0


def _refusals_in_a_child(client: duolog.sync.Client, producer: duolog.sync.Producer) -> int:
    """How many calls did anything but to refuse."""
    wrong = 0
    for call in (
        lambda: producer.post("T", b"x"),
        lambda: producer.post("T", b"x", key="k"),
        lambda: producer.send("T", b"x"),
        producer.flush,
        lambda: client.admin.topics(),
    ):
        try:
            call()
        except duolog.BadRequest as error:
            wrong += "forked" not in str(error)
        except BaseException:
            wrong += 1
        else:
            wrong += 1
    producer.close()
    client.close()
    return wrong
