"""All mutants by name."""

from __future__ import annotations

from tests.mutation.blocks import BLOCKS
from tests.mutation.later_releases import LATER_RULES, SWITCHES
from tests.mutation.mutant import Mutant
from tests.mutation.running_phase import RUNNING_PHASE
from tests.mutation.updates import UPDATES
from tests.mutation.waiting_phase import WAITING_PHASE

MUTANTS: dict[str, Mutant] = RUNNING_PHASE | WAITING_PHASE | BLOCKS | UPDATES | LATER_RULES | SWITCHES
