"""Loads with prefixes in common: sessions of requests that name what is in their KV blocks."""
