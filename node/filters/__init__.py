"""Filters: tags, SQL expressions, and the bit maps that save reads.

They may use the core. `consuming`, the protocols and the broker may use them.
"""
