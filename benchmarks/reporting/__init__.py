"""What is shown and stored of comparisons."""
