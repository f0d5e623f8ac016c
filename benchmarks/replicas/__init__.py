"""Several replicas of the router in front of simulated engines, with and without `--peers`."""
