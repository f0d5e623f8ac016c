"""Judges engines: from what was measured of a pool to a verdict for each engine of it."""
