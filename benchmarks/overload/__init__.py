"""What overload does to a router: large bodies, clients that do not read, greedy tenants."""
