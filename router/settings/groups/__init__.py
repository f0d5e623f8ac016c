"""The settings in groups, a class and a file each."""
