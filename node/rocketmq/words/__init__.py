"""RocketMQ's words for ours: codes, names, handles, messages and settings of its API.

Translation without state. Only the modules of RocketMQ's API come in.
"""
