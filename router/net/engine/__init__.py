"""The engine's side: connections, and what takes an answer."""
