"""Faults with real processes: a router of two workers, two prefill and four decode engines, under
load, while everything that can break breaks. `make chaos` runs it; CI runs one seed."""
