"""The simulated engines of a comparison, as a process."""
