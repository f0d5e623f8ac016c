"""The fleet of engines: its engines, what events change, and which engine takes a request."""
