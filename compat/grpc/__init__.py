"""RocketMQ's own gRPC API, `apache.rocketmq.v2.MessagingService`, on the node's client port.

Its stubs are those of Apache's package (`duolog-server[rocketmq]`): two copies of one schema in a
process would collide. It may use every part of the broker; only the server may import it.
"""
