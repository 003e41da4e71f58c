"""The console: a cluster in a browser. A client of the nodes, with the rights of its viewer.

It runs in a process of its own, beside a node or elsewhere, and knows what nodes tell any client.
A node imports nothing of it.
"""
