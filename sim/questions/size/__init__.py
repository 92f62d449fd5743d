"""How many GPUs, of which kind, set up how: capacity of each candidate, and the smallest and cheapest fleet.

`candidates` makes them and finds those that do not fit, `load` sends traffic at a rate, `promise` judges
runs, `search` finds the highest rate and the fleet by asking for runs, which are simulated for all candidates
together, `results` turns it all into tables and says what limits a fleet, and `answer` shows it.
"""

from sim.questions.size.answer import Sizing
from sim.questions.size.size import size

__all__ = ["Sizing", "size"]
