"""Programs that call nodes: the command line, the console, and what both find out about a group.

They speak the native API as any client does. Only `duolog node start` assembles a node.
"""
