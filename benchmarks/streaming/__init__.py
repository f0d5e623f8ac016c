"""The streaming client of both load generators: `compare`'s and the gate's."""
