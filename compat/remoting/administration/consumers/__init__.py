"""Consumers: who is connected, how far groups are, and what tools ask of clients."""
