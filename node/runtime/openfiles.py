"""The limit on open files and connections of this process.

A store that cannot open a file cannot sync, and fences its node. So connections leave it the files
that it needs, whatever the limit of the system.
"""

import resource

OWN_FILES = 512  # of the store, of slaves, and of connections that are about to be refused
LEAST = 16  # connections of a port
SLAVES_SHARE = 16  # of all files, one in so many may be a connection of the replication port


def raise_limit() -> None:
    """Raise the limit as far as an unprivileged process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_that_fit(wanted: int, ports: int) -> int:
    """Connections that each of some ports may have: so many, or fewer where files are few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(LEAST, (limit - OWN_FILES) // ports))


def slaves_that_fit(wanted: int) -> int:
    """Connections of the replication port: so many, or fewer where files are few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(LEAST, limit // SLAVES_SHARE))
