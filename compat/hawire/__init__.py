"""RocketMQ's own replication protocol: bytes of a commit log, from its brokers and to them.

Nobody on it is a member of a replica group: it carries copies, never a vote.
"""
