"""Metrics for Prometheus: facts of a node, read when they are asked for.

Nothing here is imported by a node without `metrics.listen`, and nothing here changes a node.
"""
