"""Calls of RocketMQ's clients that concern other nodes: connected clients, forwarded calls, routes.

It may use the broker and `words`. Only the modules of `rocketmq` may use it.
"""
