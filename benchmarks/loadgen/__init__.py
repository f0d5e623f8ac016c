"""The load generator of a comparison, as a process."""
