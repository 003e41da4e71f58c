"""How many files this process may have open: every queue's open file takes two descriptors."""

import resource


def raise_limit() -> None:
    """Allow as many as the system lets an ordinary process allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
