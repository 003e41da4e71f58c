"""Who calls, and what they may do: one model for every door of a node.

What decides is pure: resources, policies, decisions. `gate` is what the doors ask; it reads the
replicated tables and changes nothing.
"""
