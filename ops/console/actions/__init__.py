"""Actions of the console: each describes its effect, asks for confirmation, and runs.

None knows of HTTP. Every one is a call that the command line has, too.
"""
