"""Loads with common prefixes: sessions of requests with the contents of their KV blocks."""
