"""What is shown of a simulation."""
