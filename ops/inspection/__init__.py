"""Inspection of a cluster through a client: its health, and the trace of a message.

For the command line and other programs of operators. Nothing here runs in a node.
"""
