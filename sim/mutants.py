"""All planted bugs: the simulator is only to be trusted while it catches every one."""

from sim.mutants_access import ACCESS
from sim.mutants_clocks import CLOCKS
from sim.mutants_copies import COPIES
from sim.mutants_decay import DECAY
from sim.mutants_election import ELECTION
from sim.mutants_light import LIGHT
from sim.mutants_lite import LITE
from sim.mutants_moving import MOVING
from sim.mutants_observer import OBSERVER
from sim.mutants_remade import REMADE
from sim.mutants_replication import REPLICATION
from sim.mutants_sdk import SDK
from sim.mutants_secondday import SECOND_DAY
from sim.mutants_services import SERVICES
from sim.mutants_steps import STEPS
from sim.planted import Mutant

MUTANTS = [
    *REPLICATION,
    *ELECTION,
    *LIGHT,
    *OBSERVER,
    *CLOCKS,
    *COPIES,
    *DECAY,
    *SERVICES,
    *STEPS,
    *SDK,
    *LITE,
    *ACCESS,
    *REMADE,
    *SECOND_DAY,
    *MOVING,
]

__all__ = ["MUTANTS", "Mutant"]
