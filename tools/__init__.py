"""For developers: the documents as a site."""
