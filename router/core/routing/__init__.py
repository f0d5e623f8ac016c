"""Chooses the engines that serve a request, and drives its plan."""
