"""NVIDIA AIPerf as the gate's load generator."""
