"""Clients that people use, each in an environment of its own: `make test-clients`."""
