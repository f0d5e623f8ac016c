"""From the record of a run to figures, a diagnosis and a verdict."""
