"""Questions asked of many simulations at once: validation, sweeps, sizing, comparison."""
