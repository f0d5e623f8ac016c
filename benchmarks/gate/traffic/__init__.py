"""The gate's own load generator."""
