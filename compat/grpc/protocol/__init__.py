"""Translation between RocketMQ's API and ours: codes, names, handles, messages, settings.

It keeps no state. Only the modules of `rocketmq` may use it.
"""
