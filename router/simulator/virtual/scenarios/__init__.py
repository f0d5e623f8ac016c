"""The scenarios of the modelled cluster; `catalogue` lists them."""
