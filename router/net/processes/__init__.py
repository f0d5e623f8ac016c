"""Communication with other processes: workers, successors, sibling replicas."""
