"""KV caches: notifications and events of engines."""
