"""The routers that are compared."""
