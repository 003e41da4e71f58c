"""What jobs refuse."""


class BadJob(Exception):
    """A job cannot be done as asked; the text names the option or file."""
