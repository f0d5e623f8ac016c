"""The gate: the validator's workload against any endpoint, a verdict, and why."""
