"""Following a broker of RocketMQ: its log is copied byte for byte, until duolog takes over.

A program of its own owns the directory meanwhile. It knows no client, no election and no role; what
it leaves is a directory as RocketMQ wrote it, on which a node starts.
"""
