"""The HTTP server of a simulated engine."""
