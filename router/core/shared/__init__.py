"""What worker processes and sibling replicas tell each other of loads."""
