"""Parses and writes the parts of requests and answers, as bytes: heads, bodies, events, errors."""
