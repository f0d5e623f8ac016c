"""What is shown and stored of a run."""
