"""The client's side of a request: its connection, what it sends, what it gets."""
