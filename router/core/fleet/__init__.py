"""The engines that are there: their state, load and what events change."""
