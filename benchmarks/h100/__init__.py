"""Real vLLM engines on one GPU that is lent for minutes: what to carry there, and what to run."""
