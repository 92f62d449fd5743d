"""`dryserve explain`: why a latency percentile of a run is what it is, and what would change it.

A run is simulated once more under observation (`observe`), the time of every finished request is booked
under parts that add up to its latency (`ledger`, `parts`), the slowest are compared with the middle
(`bands`, `gaps`, `explain`), and changes that may help are simulated in turn (`candidates`, `remedies`).
"""
