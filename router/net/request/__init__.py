"""One run of a request: from the client's bytes through its plan to the one exit."""
