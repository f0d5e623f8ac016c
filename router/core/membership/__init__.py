"""Who is to be in the fleet, as sources and operators say."""
