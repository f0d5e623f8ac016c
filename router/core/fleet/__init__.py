"""The fleet of engines: their state and load, and how events change it."""
