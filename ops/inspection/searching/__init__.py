"""Messages of a topic are searched by a text or by SQL, over a range of time.

A client reads the queues in batches, a little at a time; nothing of it runs in a node.
"""
