"""Nodes in child processes."""
