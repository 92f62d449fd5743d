"""The simulated cluster: load generator, router, replicas with a real scheduler each, and one clock."""
