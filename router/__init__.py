"""pd-router: a router in front of pools of prefill and decode vLLM engines."""

__version__ = "0.3.0"
