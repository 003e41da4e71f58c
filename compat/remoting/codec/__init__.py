"""The remoting protocol as bytes and values: no IO, no clock, no event loop."""
