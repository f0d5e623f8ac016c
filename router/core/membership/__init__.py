"""Which engines are in the fleet, by sources and operators."""
