"""How fast each engine really is, and when it stalls or fails more than the others."""
