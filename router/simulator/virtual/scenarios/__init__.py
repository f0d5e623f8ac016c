"""What happens to the modelled cluster in a run: `catalogue` names all scenarios."""
