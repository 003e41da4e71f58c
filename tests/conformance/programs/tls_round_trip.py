"""One message over TLS with Apache's Python client. Argument: HOST:PORT."""

import os
import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

SECONDS = 60.0

configuration = ClientConfiguration(sys.argv[1], Credentials(), request_timeout=30)
producer = Producer(configuration, ("T",), tls_enable=True)
producer.startup()
message = Message()
message.topic, message.body = "T", b"over tls"
producer.send(message)
consumer = SimpleConsumer(configuration, "g", {"T": FilterExpression()}, tls_enable=True)
consumer.startup()
found: list[Message] = []
end = time.monotonic() + SECONDS
while not found and time.monotonic() < end:
    found = consumer.receive(32, 15)
for received in found:
    consumer.ack(received)
    print("received", received.body, flush=True)
os._exit(0)  # the client's threads may take their time
