"""Which prompt prefixes the engines' KV caches hold, as far as this router knows."""
