"""Measuring routers side by side."""
