"""A cluster in virtual time: modelled engines, driven by the router's own fleet and policies.

    result = simulate(scenario("slow8", Size()), "oracle", seed=1)  # cluster.py, scenarios/

Fleet, Scheduler, policies, plans and the rules of retries and probes are the ones that
`pd-router serve` runs, unchanged; engines, clients, sockets and the clock are models. Nothing
waits: an hour of a cluster takes as long as its events do.
"""
