"""What can be changed in the console: each action asks first, says what it would do, and does it.

None knows of HTTP. Every one is a call that the command line has, too.
"""
