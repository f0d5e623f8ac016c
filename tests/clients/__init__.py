"""Popular clients, each in its own environment: `make test-clients`."""
