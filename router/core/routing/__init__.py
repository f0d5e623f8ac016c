"""Which engines serve a request, and how its plan is driven."""
