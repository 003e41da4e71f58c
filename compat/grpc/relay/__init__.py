"""Calls of RocketMQ's clients that concern other nodes: connected clients, forwarded calls, routes.

It may use the broker and `protocol`. Only the modules of `compat.grpc` may use it.
"""
