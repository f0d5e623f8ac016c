"""Notifications of KV-cache transfers, and KV-cache events of engines."""
