"""The gate: the load of AICR's inference-perf validator on any endpoint, a verdict, and why."""
