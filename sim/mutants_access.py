"""Planted bugs of users, rights and quotas."""

from sim.faults import ACCESS_ON, NODES, Fault
from sim.mutants_services import with_services


def with_access(seed: int) -> list[Fault]:
    """A run's usual faults, and nodes with users, whose services are used by nobody else."""
    found = [*with_services(seed), Fault(0.0, ACCESS_ON, NODES[0])]
    return sorted(found, key=lambda fault: fault.at)
