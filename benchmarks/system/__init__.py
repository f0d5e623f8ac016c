"""Processes, and what the machine says about them."""
