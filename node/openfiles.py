"""The limit on open files and connections of this process."""

import resource


def raise_limit() -> None:
    """Raise the limit as far as an unprivileged process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
