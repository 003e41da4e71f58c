"""RocketMQ's classic remoting protocol (4.x clients) on a port of its own.

The codec turns bytes into values and back; the port knows connections and frames; the services
serve requests as those of the other APIs do.
"""
