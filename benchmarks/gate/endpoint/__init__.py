"""The endpoint under test and the workers behind it."""
