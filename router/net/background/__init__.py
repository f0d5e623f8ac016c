"""Loops that watch engines."""
