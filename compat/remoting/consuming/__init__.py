"""Consumers: pulls, offsets, groups and the locks of their queues, what is sent back."""
