"""What stands in requests and answers: their parts, sizes, events and headers."""
