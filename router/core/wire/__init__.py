"""Parses and writes the parts of requests and answers: contents, sizes, events and headers."""
