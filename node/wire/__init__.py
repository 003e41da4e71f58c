"""Stubs of the APIs that a node speaks to others; generated, see tools/proto.py."""
