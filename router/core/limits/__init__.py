"""What is bounded, and who may come."""
