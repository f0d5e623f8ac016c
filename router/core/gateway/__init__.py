"""What gateways in front of the router name, choose and carry out themselves."""
