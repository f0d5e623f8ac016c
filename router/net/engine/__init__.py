"""The engine side of net: connections to engines, and the legs that process their answers."""
