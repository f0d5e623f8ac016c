"""Loads with prefixes in common, replayed over HTTP: what routers find in engines' caches."""
