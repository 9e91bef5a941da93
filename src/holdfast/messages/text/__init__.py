"""Long texts: cutting, measuring, searching and paging through them."""
