"""The gate: runs the load of AICR's inference-perf validator on any endpoint, and judges it."""
