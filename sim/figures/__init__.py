"""The figures of the project, a function each: a table in, Axes out.

Tables have the columns of a run folder's `requests.csv` and `steps.csv`, so every figure can be drawn again
from the files alone. No function draws a title, and none needs a running simulation.
"""

from sim.figures.attainment import plot_attainment
from sim.figures.budget_strips import plot_budget_strips
from sim.figures.capacity_cost import plot_capacity_cost
from sim.figures.decomposition import latency_parts, plot_bands, plot_decomposition
from sim.figures.fairness import plot_fairness
from sim.figures.knob_curves import plot_knob_curves
from sim.figures.kv_cliff import plot_kv_cliff
from sim.figures.kv_timeline import plot_kv_timeline
from sim.figures.latency_cdf import plot_latency_cdf, plot_latency_panels
from sim.figures.latency_throughput import plot_latency_throughput
from sim.figures.load_timeline import plot_load_timeline
from sim.figures.pareto import plot_pareto
from sim.figures.preemption_tax import plot_preemption_tax, plot_preemptions_per_request
from sim.figures.request_waterfall import plot_request_waterfall
from sim.figures.saturation import plot_saturation
from sim.figures.slo_heatmap import plot_slo_heatmap
from sim.figures.step_composition import plot_step_composition
from sim.figures.timeline import MAX_PANELS, busiest_steps, close_window, worst_minute

__all__ = [
    "MAX_PANELS",
    "busiest_steps",
    "close_window",
    "latency_parts",
    "plot_attainment",
    "plot_bands",
    "plot_budget_strips",
    "plot_capacity_cost",
    "plot_decomposition",
    "plot_fairness",
    "plot_knob_curves",
    "plot_kv_cliff",
    "plot_kv_timeline",
    "plot_latency_cdf",
    "plot_latency_panels",
    "plot_latency_throughput",
    "plot_load_timeline",
    "plot_pareto",
    "plot_preemption_tax",
    "plot_preemptions_per_request",
    "plot_request_waterfall",
    "plot_saturation",
    "plot_slo_heatmap",
    "plot_step_composition",
    "worst_minute",
]
