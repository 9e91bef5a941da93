"""Mend request bodies so that their API accepts them (``holdfast fix``)."""
