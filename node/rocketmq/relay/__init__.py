"""Calls of RocketMQ's clients that concern other nodes: who is connected, who must answer.

Only RocketMQ's API comes in. It knows the broker, its own words and the other nodes of the cluster.
"""
