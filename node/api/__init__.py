"""duolog's own gRPC API: messages, groups, administration.

It may use every part of the broker. The server starts it; `rocketmq` uses its call types.
"""
