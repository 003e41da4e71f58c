"""Sockets of a node: listeners, TLS, limits of connections and of what arrives, transports."""
