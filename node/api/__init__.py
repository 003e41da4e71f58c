"""duolog's own gRPC API: messages, groups, administration.

Messages and groups get the parts that they use (`native.py`), administration the whole broker. The
server starts it; `rocketmq` uses its call types.
"""
