"""Requests of RocketMQ's slaves to their master, beside the log's bytes."""
