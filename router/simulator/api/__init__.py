"""vLLM's HTTP APIs: parsing requests and writing answers."""
