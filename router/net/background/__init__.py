"""Background loops that watch engines."""
