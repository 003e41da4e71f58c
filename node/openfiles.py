"""How many files and connections this process may have open."""

import resource


def raise_limit() -> None:
    """Allow as many as the system lets an ordinary process allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
