"""The stubs that come with it, made by tools/proto.py."""
