"""Sends to T and consumes the messages with Apache's Python client, until it is killed.

Arguments: HOST:PORT;HOST:PORT... Prints `sent ID` for what was acknowledged and `heard BODY`. A
process of its own, as the client cannot be shut down while its acknowledgements find no node.
"""

import os
import sys

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)


def say(*words: str) -> None:
    """One line at a time, from whichever thread."""
    os.write(sys.stdout.fileno(), (" ".join(words) + "\n").encode())


class Listener(MessageListener):  # type: ignore[misc]
    """Tells of everything."""

    def consume(self, message: Message) -> ConsumeResult:
        """It went well."""
        say("heard", message.body.decode())
        return ConsumeResult.SUCCESS


configuration = ClientConfiguration(sys.argv[1], Credentials())
producer = Producer(configuration, ("T",))
producer.startup()
consumer = PushConsumer(configuration, "g", Listener(), {"T": FilterExpression()})
consumer.startup()
number = 0
while True:
    message = Message()
    message.topic, message.body = "T", b"%d" % number
    try:
        receipt = producer.send(message)
    except Exception:  # the node is gone: the next try is a message of its own
        continue
    number += 1
    say("sent", receipt.message_id)
