"""Limits: admission, fair queueing, byte budgets, retries, and API keys."""
