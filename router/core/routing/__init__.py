"""Who serves a request, and how its plan is driven."""
