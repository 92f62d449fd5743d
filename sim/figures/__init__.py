"""The figures of the project, a function each: a table in, Axes out.

Tables have the columns of a run folder's `requests.csv` and `steps.csv`, so every figure can be drawn again
from the files alone. No function draws a title, and none needs a running simulation.
"""

from sim.figures.close_up import busiest_steps
from sim.figures.kv_timeline import plot_kv_timeline
from sim.figures.latency_cdf import plot_latency_cdf, plot_latency_panels
from sim.figures.load_timeline import plot_load_timeline
from sim.figures.step_composition import plot_step_composition
from sim.figures.timeline import MAX_PANELS

__all__ = [
    "MAX_PANELS",
    "busiest_steps",
    "plot_kv_timeline",
    "plot_latency_cdf",
    "plot_latency_panels",
    "plot_load_timeline",
    "plot_step_composition",
]
