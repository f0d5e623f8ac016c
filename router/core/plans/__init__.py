"""Plans: the steps of a request as generators, one per connector. See `steps.py`."""
