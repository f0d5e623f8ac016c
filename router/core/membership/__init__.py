"""The list of engines in the fleet, from sources and operators."""
