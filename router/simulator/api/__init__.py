"""vLLM's HTTP APIs: requests read, answers written."""
