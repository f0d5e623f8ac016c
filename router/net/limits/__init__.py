"""Limits that hold back requests and bytes."""
