"""One message over TLS with Apache's Python client. Argument: HOST:PORT."""

import os
import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

configuration = ClientConfiguration(sys.argv[1], Credentials())
producer = Producer(configuration, ("T",), tls_enable=True)
producer.startup()
message = Message()
message.topic, message.body = "T", b"over tls"
producer.send(message)
consumer = SimpleConsumer(configuration, "g", {"T": FilterExpression()}, tls_enable=True)
consumer.startup()
for received in consumer.receive(32, 15):
    consumer.ack(received)
    print("received", received.body, flush=True)
os._exit(0)  # the client's threads may take their time
