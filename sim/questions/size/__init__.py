"""How many GPUs, of which kind, set up how: capacity of each candidate, and the smallest and cheapest fleet.

`candidates` makes them and finds those that do not fit, `load` sends traffic at a rate, `promise` judges
runs, `search` finds the highest rate and the fleet by asking for runs, `rounds` has what all candidates
ask for simulated together, `prices` reads what GPUs cost, `rows` turns it all into tables, `binding` says
what limits a fleet, `screen` prints, `pictures` draws and `folder` keeps it.
"""

from sim.questions.size.size import Sizing, size

__all__ = ["Sizing", "size"]
