"""Pages of the console, and the actions that their forms ask for. None knows of HTTP.

An action describes its effect, asks for confirmation, and runs. Every one is a call that the
command line has, too.
"""
