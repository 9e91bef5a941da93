"""One module for each screen: what it reads from the store, as values for its template."""
