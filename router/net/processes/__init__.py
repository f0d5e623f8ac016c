"""Other processes: workers, successors, sibling replicas."""
