"""Many simulations at once, on one machine or a cluster, each kept as it arrives."""
