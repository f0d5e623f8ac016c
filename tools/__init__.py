"""For developers: the documents as a site, wheels and releases."""
