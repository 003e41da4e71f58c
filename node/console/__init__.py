"""The console: a cluster in a browser. A client of the nodes, with the rights of whoever looks.

It runs in a process of its own, beside a node or elsewhere, and knows of nodes what they tell any
client. Nothing of it is imported by a node.
"""
