"""Texts under the hash of their bytes: kept, named, counted, read page by page."""
