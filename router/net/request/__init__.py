"""The run of a request: from the client's data through its plan to its single exit."""
