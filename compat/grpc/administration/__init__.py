"""RocketMQ's Admin service, `apache.rocketmq.v2.Admin`: administration by gRPC.

Its methods call those of the native API, as mqadmin's requests do (node/api/verbs.py).
"""
