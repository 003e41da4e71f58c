"""How many files this process may have open: every queue's file takes two descriptors."""

import resource

DESCRIPTORS_EACH = 4  # to have for a light queue: two of its file, as many for all else


def raise_limit() -> None:
    """Allow as many as the system lets an ordinary process allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def light_queues_max(wanted: int) -> int:
    """As many light queues as wanted, or as leave files for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft // DESCRIPTORS_EACH)
