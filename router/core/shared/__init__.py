"""Loads that worker processes and sibling replicas share."""
