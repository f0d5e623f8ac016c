"""What a unit of work costs a router, counted exactly: user-space instructions and system calls."""
