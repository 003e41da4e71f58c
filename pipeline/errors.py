"""The error of jobs."""


class BadJob(Exception):
    """A job cannot run with these options or files; the text names the one."""
