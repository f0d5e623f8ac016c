"""Processes, and their figures in /proc."""
