"""The gate's load on the router with one policy after the other."""
