"""Spans of what a node does with messages that carry a sampled trace context (`traces.endpoint`).

The event loop only notes batches, in a bounded queue; a thread makes spans of them and exports
them.
"""
