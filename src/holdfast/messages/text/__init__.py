"""Long texts: cut, measure, search and page through them."""
