"""What engines import that has no build for a CPU: this folder is on their PYTHONPATH."""
