"""Measurements of engines: what was seen of each of them, only counted."""
