"""The router's side of a simulation: one replica and what it does."""
