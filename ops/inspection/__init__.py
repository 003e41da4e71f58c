"""What is seen of a cluster from outside, with a client: how it is, and the way of a message.

For the command line and other programs of operators. Nothing here runs in a node.
"""
